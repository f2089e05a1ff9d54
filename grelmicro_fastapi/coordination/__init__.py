from grelmicro_fastapi.coordination.coordination import Coordination
from grelmicro_fastapi.coordination.guards import Guard, LockHandle, ReadGuard, WriteGuard
from grelmicro_fastapi.coordination.leaderelection import LeaderElection
from grelmicro_fastapi.coordination.leadership import LeaderRecord, Leadership
from grelmicro_fastapi.coordination.lock import Lock
from grelmicro_fastapi.coordination.readwritelock import ReadWriteLock, ReadWriteLockState
from grelmicro_fastapi.coordination.tasklock import TaskLock

__all__ = [
    "Coordination",
    "Guard",
    "LeaderElection",
    "LeaderRecord",
    "Leadership",
    "Lock",
    "LockHandle",
    "ReadGuard",
    "ReadWriteLock",
    "ReadWriteLockState",
    "TaskLock",
    "WriteGuard",
]
