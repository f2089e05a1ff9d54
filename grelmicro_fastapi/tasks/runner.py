"""Runs one body at a time, and lets nothing it does reach the server."""

import asyncio
import inspect
import logging
import random
import signal
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
from anyio import to_thread

from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.coordination.futures import settle, sleep
from grelmicro_fastapi.errors import NotLeaderError
from grelmicro_fastapi.tasks.health import TaskHealth
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
        health = self.health
        health.stage = "running"
        health.runs += 1
        try:
            await self._bounded(partial(self._call, context))
        except NotLeaderError:
            raise
        except Exception as error:
            self._failed(error)
            return False
        health.consecutive_failures = 0
        health.last_error = None
        health.last_success = datetime.fromtimestamp(self.clock.wall(), UTC)
        return True

    async def back_off(self) -> None:
        """Pause after a failure, longer after each."""
        self.health.stage = "backoff"
        pause = min(FIRST_PAUSE * 2 ** (self.health.consecutive_failures - 1), LONGEST_PAUSE)
        await sleep(self.clock, pause * random.uniform(0.8, 1.2))

    async def jitter(self) -> None:
        """Start a little later, each time another little."""
        if self.spec.jitter:
            await sleep(self.clock, random.uniform(0, self.spec.jitter))

    async def _call(self, context: TaskContext) -> None:
        body: Callable[..., Any] = self.spec.body
        call = partial(body, **self.spec.arguments(context))
        if inspect.iscoroutinefunction(body):
            await call()
        else:
            await _in_thread(call, self._limiter)

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
        if not task.cancelled() and (error := task.exception()):
            _log.warning("task %r raised while it was cancelled: %r", self.spec.name, error)
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


async def _in_thread(call: Callable[[], object], limiter: anyio.CapacityLimiter) -> None:
    """Run in a worker thread. A thread cannot be cancelled, so a cancellation waits until it returns."""
    work = asyncio.ensure_future(to_thread.run_sync(call, limiter=limiter))
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled and not work.exception():
        raise cancelled
    work.result()
