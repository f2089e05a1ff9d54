"""What is known of a background task before anything runs, and what its body is given."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict, get_args

from grelmicro_fastapi.coordination.leadership import Leadership
from grelmicro_fastapi.errors import SettingsValidationError
from grelmicro_fastapi.settings import flag, seconds, text
from grelmicro_fastapi.tasks.schedule import Every, Schedule

Body = Callable[..., object] | Callable[..., Awaitable[object]]
Where = Literal["process", "cluster", "leader"]
OnError = Literal["restart", "stop", "exit"]


@dataclass(frozen=True, slots=True)
class TaskContext:
    """What a body may ask for. `scheduled_at` is when the run was due; `missed` how many before it did not take place.

    `fencing_token` rises with each run in the fleet, or with each term: what the run writes to should refuse a lower
    one. None for a task of each process.
    """

    name: str
    scheduled_at: datetime | None = None
    missed: int = 0
    leadership: Leadership | None = None
    fencing_token: int | None = None


class TaskOptions(TypedDict, total=False):
    """What may be said of every task. Lengths in seconds."""

    name: str
    """What it is called in logs, and in the store. The function's name unless given."""
    jitter: float
    """Start up to so much later, each time another little, 0."""
    timeout: float
    """Cancel a run that takes longer. None: no bound."""
    on_error: OnError
    """What follows a failure: "restart" goes on with the next run, "stop" ends the task, "exit" the server."""


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One background task, as its decorator registered it. Lengths in seconds."""

    name: str
    body: Body
    where: Where
    schedule: Schedule | None
    jitter: float = 0.0
    timeout: float | None = None
    on_error: OnError = "restart"
    catch_up: bool = False
    grace: float = 60.0

    def __post_init__(self) -> None:
        text("name=", self.name)
        flag("catch_up=", self.catch_up)
        seconds("jitter=", self.jitter)
        seconds("grace=", self.grace)
        if self.timeout is not None:
            seconds("timeout=", self.timeout, least=0.001)
        if self.on_error not in get_args(OnError):
            raise SettingsValidationError(f"on_error= is one of {', '.join(get_args(OnError))}")
        if self.where not in get_args(Where):
            raise SettingsValidationError("on= is process or cluster")

    @property
    def lease(self) -> float:
        """How long a run in the fleet outlives its process in the store: the next tick should find it dead."""
        return min(30.0, max(0.9, 0.9 * self.schedule.seconds)) if isinstance(self.schedule, Every) else 30.0

    def arguments(self, context: TaskContext) -> dict[str, Any]:
        """What the body is called with: by annotation, whatever the parameters are called."""
        given: dict[str, Any] = {}
        for name, kind in wanted(self.body).items():
            given[name] = context if kind is TaskContext else context.leadership
        return given


def wanted(body: Body) -> dict[str, type]:
    """The parameters of a body and what each wants. Raises if one wants what no task has."""
    try:
        parameters = inspect.signature(body, eval_str=True).parameters
    except NameError:
        # A type imported for the checker only: then its name has to do.
        parameters = inspect.signature(body).parameters
    found: dict[str, type] = {}
    for name, parameter in parameters.items():
        for kind in (TaskContext, Leadership):
            if parameter.annotation is kind or str(parameter.annotation).rpartition(".")[2] == kind.__name__:
                found[name] = kind
        if name not in found and parameter.default is parameter.empty:
            raise SettingsValidationError(
                f"{body!r} asks for {name!r}: a task's parameters are annotated Leadership or TaskContext"
            )
    return found
