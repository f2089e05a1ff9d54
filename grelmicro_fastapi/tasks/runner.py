"""Runs one body at a time, and lets nothing it does reach the server."""

import asyncio
import logging
import random
import signal
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial

import anyio

from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.coordination.futures import settle, sleep
from grelmicro_fastapi.errors import DrainingError, NotLeaderError
from grelmicro_fastapi.tasks.bodies import call
from grelmicro_fastapi.tasks.health import Stage, TaskHealth
from grelmicro_fastapi.tasks.spec import TaskContext, TaskSpec

_log = logging.getLogger("grelmicro_fastapi.tasks")

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
"""Seconds: how the pause after failures grows, doubling from the first to the longest."""
STUBBORN = 5.0
"""Seconds after which a body that ignores its cancellation is called stuck."""


class Stopped(Exception):  # noqa: N818  # no error: the task's own policy ends it
    """The task's policy says that it runs no more."""


class Runner:
    """Runs the body of one task whenever it is told to."""

    def __init__(self, spec: TaskSpec, clock: Clock) -> None:
        self.spec = spec
        self.clock = clock
        self.health = TaskHealth(spec.name)
        self._limiter = anyio.CapacityLimiter(1)

    async def run(self, context: TaskContext) -> bool:
        """Run the body once; True if it succeeded. Raises `Stopped` if it failed and must not run again.

        The body has always ended when this returns, so runs never overlap. Raises `NotLeaderError` if that is why it
        was cancelled.
        """
        health, leadership = self.health, context.leadership
        health.stage, health.next_run, health.running_since = "running", None, self._now()
        health.runs += 1
        try:
            await self._bounded(partial(call, self.spec.body, self.spec.arguments(context), self._limiter))
            if self.spec.schedule is None and leadership and leadership.valid:
                raise RuntimeError("it ended although this process leads")
        except DrainingError:
            _log.info("task %r takes no more locks: this process shuts down", self.spec.name)
            return False
        except Exception as error:
            if isinstance(error, NotLeaderError) and leadership and not leadership.valid:
                raise
            self._failed(error)
            return False
        finally:
            health.running_since = None
        health.consecutive_failures = 0
        health.last_error = None
        health.last_success = self._now()
        return True

    async def back_off(self) -> None:
        """Pause after a failure, longer after each."""
        self.health.stage = "backoff"
        # The exponent is capped too: a task may fail for years.
        pause = min(FIRST_PAUSE * 2 ** min(max(self.health.consecutive_failures - 1, 0), 16), LONGEST_PAUSE)
        await sleep(self.clock, pause * random.uniform(0.8, 1.2))

    async def jitter(self) -> None:
        """Start a little later, each time another little."""
        if self.spec.jitter:
            await sleep(self.clock, random.uniform(0, self.spec.jitter))

    def rest(self, stage: Stage, until: datetime | None = None) -> None:
        """Nothing runs, until then."""
        self.health.stage, self.health.next_run = stage, until

    def missed(self, count: int, which: str) -> None:
        """So many runs did not take place, or did not end."""
        self.health.missed += count
        _log.warning("task %r missed %d of its runs, %s", self.spec.name, count, which, extra={"task": self.spec.name})

    def lost(self, error: Exception) -> None:
        """The run was cancelled because its lease was lost."""
        self._failed(error)

    async def _bounded(self, act: Callable[[], Awaitable[None]]) -> None:
        """Run in a task of its own, so that cancelling it is never mistaken for cancelling us."""
        task = asyncio.ensure_future(act())
        late: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        limit = self.spec.timeout
        timer = None if limit is None else self.clock.call_later(limit, lambda: settle(late, None))
        try:
            await asyncio.wait([task, late], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._end(task)
            raise
        finally:
            if timer:
                timer.cancel()
        if not task.done():
            await self._end(task)
            raise TimeoutError(f"it took longer than its timeout of {limit:g} s")
        if task.cancelled():
            raise RuntimeError("it cancelled itself")
        task.result()

    async def _end(self, task: "asyncio.Future[None]") -> None:
        """Cancel, and wait for the end, however long it takes: nothing may run beside a body that goes on."""
        cancelled: asyncio.CancelledError | None = None
        task.cancel()
        timer = self.clock.call_later(STUBBORN, self._stuck)
        try:
            while not task.done():
                try:
                    await asyncio.wait([task])
                except asyncio.CancelledError as again:
                    cancelled = again
                    task.cancel()
        finally:
            timer.cancel()
            self.health.stuck = False
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, NotLeaderError):
            _log.warning("task %r raised while it was cancelled", self.spec.name, exc_info=error)
        if cancelled:
            raise cancelled

    def _stuck(self) -> None:
        self.health.stuck = True
        _log.critical("task %r ignores its cancellation: it runs on until it returns", self.spec.name)

    def _failed(self, error: Exception) -> None:
        health, spec = self.health, self.spec
        health.failures += 1
        health.consecutive_failures += 1
        health.last_error = f"{type(error).__name__}: {error}"
        _log.error("task %r failed (%s)", spec.name, spec.on_error, exc_info=error, extra={"task": spec.name})
        if spec.on_error == "restart":
            return
        health.stage = "failed"
        if spec.on_error == "exit":
            # The way a server is told to stop: it lets requests finish, and its parent starts another.
            signal.raise_signal(signal.SIGTERM)
        raise Stopped(spec.name)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.wall(), UTC)
