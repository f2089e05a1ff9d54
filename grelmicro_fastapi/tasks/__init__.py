from grelmicro_fastapi.coordination.leadership import Leadership
from grelmicro_fastapi.tasks.health import TaskHealth
from grelmicro_fastapi.tasks.spec import TaskContext
from grelmicro_fastapi.tasks.tasks import Tasks

__all__ = ["Leadership", "TaskContext", "TaskHealth", "Tasks"]
