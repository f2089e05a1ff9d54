"""Distributed locks, read-write locks and leader election for FastAPI, handed to route handlers as typed guards."""

from grelmicro_fastapi.app.grelmicro import Grelmicro
from grelmicro_fastapi.coordination import (
    Coordination,
    LeaderElection,
    Leadership,
    Lock,
    LockHandle,
    ReadGuard,
    ReadWriteLock,
    TaskLock,
    WriteGuard,
)
from grelmicro_fastapi.tasks import TaskContext, Tasks
from grelmicro_fastapi.web.dependencies import lock_guard, read_guard, write_guard
from grelmicro_fastapi.web.leader import leader_guard
from grelmicro_fastapi.web.methods import method_guard
from grelmicro_fastapi.web.runtime import Runtime, runtime_of

__all__ = [
    "Coordination",
    "Grelmicro",
    "LeaderElection",
    "Leadership",
    "Lock",
    "LockHandle",
    "ReadGuard",
    "ReadWriteLock",
    "Runtime",
    "TaskContext",
    "TaskLock",
    "Tasks",
    "WriteGuard",
    "leader_guard",
    "lock_guard",
    "method_guard",
    "read_guard",
    "runtime_of",
    "write_guard",
]
