"""A task lock: for work that must run once in the fleet, and is skipped by everybody else."""

from typing import Literal, Self, TypedDict, Unpack, final
from uuid import UUID

from pydantic import Field, model_validator

from grelmicro_fastapi.coordination.backend import Source, check_source
from grelmicro_fastapi.coordination.guards import LockHandle
from grelmicro_fastapi.coordination.names import TASKLOCK, check_name
from grelmicro_fastapi.coordination.state import Mode
from grelmicro_fastapi.coordination.threads import ThreadHeld
from grelmicro_fastapi.coordination.view import Held
from grelmicro_fastapi.coordination.wish import Wish
from grelmicro_fastapi.errors import LockTimeoutError, WouldBlockError
from grelmicro_fastapi.settings import Duration, Settings, Worker, resolve


class TaskLockOptions(TypedDict, total=False):
    """What may be given to `TaskLock` by keyword. All lengths are seconds."""

    worker: str | UUID
    """Who holds, as operators see it. Random per process unless given."""
    lease_duration: float
    """How long a hold lasts at the most without renewal, 60: longer than the work takes."""
    min_hold_duration: float
    """How long nobody else may enter after the start, however short the work was, 1. At most `lease_duration`."""
    keep_alive: bool
    """Renew the lease as long as the handle is alive, False."""
    on_lost: Literal["fail", "cancel"]
    """`cancel` also cancels the task that acquired when the lease is lost; "fail"."""


class TaskLockSettings(Settings):
    """The options with their defaults, as they are resolved."""

    worker: Worker | None = None
    lease_duration: Duration = 60.0
    min_hold_duration: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    keep_alive: bool = False
    on_lost: Literal["fail", "cancel"] = "fail"

    @model_validator(mode="after")
    def _holds_within_the_lease(self) -> Self:
        if self.min_hold_duration > self.lease_duration:
            raise ValueError("min_hold_duration must not be longer than lease_duration")
        return self


@final
class TaskLock(Held[LockHandle]):
    """Run once, skip elsewhere: it never waits.

        try:
            async with TaskLock("cleanup", min_hold_duration=30):
                await clean_up()
        except WouldBlockError:
            pass  # somebody does it, or did it less than 30 s ago

    The store keeps the minimal hold, from the moment of the grant and also after a body that raised, so that a process
    whose turn comes a moment late does not do the work again. The variables are `GREL_TASKLOCK_{NAME}_*` and
    `GREL_TASKLOCK_*`; `backend` and `env_load` are those of `Lock`.
    """

    _patience = 0

    def __init__(
        self,
        name: str,
        *,
        backend: Source | None = None,
        env_load: bool | None = None,
        **options: Unpack[TaskLockOptions],
    ) -> None:
        check_name(name)
        settings = resolve("TASKLOCK", name, TaskLockSettings, dict(options), env_load=env_load)
        wish = Wish(
            name,
            TASKLOCK + name,
            Mode.WRITE,
            settings.lease_duration,
            retry_interval=settings.lease_duration,
            retry_jitter=0.0,
            worker=settings.worker,
            keep_alive=settings.keep_alive,
            cancels=settings.on_lost == "cancel",
            max_hold=None,
            min_hold=settings.min_hold_duration,
        )
        super().__init__(wish, check_source(backend), LockHandle)

    async def acquire(self) -> LockHandle:
        """Acquire in one attempt. Raises `WouldBlockError` if somebody holds it, or held it too short a time ago."""
        return self._at_once(self._wish, 0) or await self._take(self._wish, 0)

    async def refresh(self) -> None:
        """Let the lease start anew: for work that takes longer. Raises as `Guard.extend`."""
        await self.extend()

    @property
    def from_thread(self) -> "ThreadTaskLock":
        """The same for code that runs in a thread."""
        return ThreadTaskLock(self)

    async def _take(self, wish: Wish, timeout: float | None) -> LockHandle:
        try:
            return await super()._take(wish, timeout)
        except LockTimeoutError:
            raise WouldBlockError(f"{self.name!r} runs elsewhere, or ran a moment ago: skip it this time") from None


@final
class ThreadTaskLock(ThreadHeld[LockHandle]):
    """A `TaskLock` for code that runs in a thread."""
