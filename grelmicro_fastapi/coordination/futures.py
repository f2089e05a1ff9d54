"""Waiting that ends: futures that somebody else may have settled already, and calls that may hang."""

import asyncio
from collections import deque
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from grelmicro_fastapi.coordination.clock import Clock, Timer

T = TypeVar("T")


def settle(future: "asyncio.Future[T]", value: T) -> None:
    """Set the result, unless the future was cancelled or settled before."""
    if not future.done():
        future.set_result(value)


async def sleep(clock: Clock, seconds: float) -> None:
    """Wait on that clock."""
    await within(clock, seconds, asyncio.get_running_loop().create_future())


async def within(clock: Clock, seconds: float, future: "asyncio.Future[Any]") -> None:
    """Wait for the future, but for no longer than so many seconds on that clock; then it is settled all the same."""
    timer = clock.call_later(seconds, lambda: settle(future, None))
    try:
        await future
    finally:
        timer.cancel()


async def first_of(*works: Coroutine[Any, Any, Any]) -> None:
    """Run them until one of them ends, and end the others; what that one raised is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Patience:
    """Ends many waits, each after the same number of seconds: one timer serves them all."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._waits: deque[tuple[float, asyncio.Future[Any]]] = deque()
        self._timer: Timer | None = None

    def future(self) -> "asyncio.Future[Any]":
        """One that is settled with None when its time is over, should it not be done by then."""
        future, waits = asyncio.get_running_loop().create_future(), self._waits
        # Nearly all of them end soon, and in the order in which they began.
        while waits and waits[0][1].done():
            waits.popleft()
        waits.append((self._clock.now() + self._seconds, future))
        if not self._timer:
            self._timer = self._clock.call_later(self._seconds, self._look)
        return future

    def close(self) -> None:
        """End no wait any more."""
        self._waits.clear()
        if self._timer:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        now = self._clock.now()
        while self._waits and (self._waits[0][1].done() or self._waits[0][0] <= now + 0.001):
            settle(self._waits.popleft()[1], None)
        if self._waits:
            self._timer = self._clock.call_later(self._waits[0][0] - now, self._look)


class Bound:
    """`with Bound(clock, seconds)` cancels the running task once its time is over, and raises `TimeoutError` instead.

    A cancellation from elsewhere goes on as it came, also if it comes in the same moment.
    """

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._task = asyncio.current_task()
        self._late = False
        self._until = clock.now() + seconds
        self._timer: Timer = clock.call_later(seconds, self._over)

    def hasten(self, seconds: float) -> None:
        """End in so many seconds, should that be earlier."""
        if not self._late and self._clock.now() + seconds < self._until:
            self._timer.cancel()
            self._until = self._clock.now() + seconds
            self._timer = self._clock.call_later(seconds, self._over)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._late and self._task and not self._task.uncancel() and isinstance(error, asyncio.CancelledError):
            raise TimeoutError from error

    def _over(self) -> None:
        self._late = True
        if self._task:
            self._task.cancel()
