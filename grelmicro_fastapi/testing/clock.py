"""Time that stands still until a test moves it."""

import asyncio
import heapq
import itertools
from collections.abc import Callable

_TURNS = 50
"""Turns given to the event loop after each step, so that what the step started can come to rest."""


class _Timer:
    __slots__ = ("callback", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
        self.loop = loop
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualClock:
    """A `Clock` for tests: give it to a provider, and every lease, pause and timer runs on it.

        clock = ManualClock()
        provider = MemoryProvider(clock=clock)
        ...
        await clock.advance(61)  # the lease of 60 seconds has ended

    Timers are called in order, each at its own moment. Work that leaves the loop, to a thread or a server, is not
    waited for.
    """

    def __init__(self, now: float = 1_000.0, wall: float = 1_800_000_000.0) -> None:
        self._now = now
        self._ahead = wall - now
        self._timers: list[tuple[float, int, _Timer]] = []
        self._order = itertools.count()

    def now(self) -> float:
        """Seconds, as far as the test has moved them."""
        return self._now

    def wall(self) -> float:
        """Seconds since 1970, moving along with `now`."""
        return self._now + self._ahead

    def call_later(self, delay: float, callback: Callable[[], object]) -> asyncio.Handle | _Timer:
        """Call back on the running loop once the test has moved the time by `delay` seconds."""
        loop = asyncio.get_running_loop()
        if delay <= 0:
            return loop.call_soon(callback)
        timer = _Timer(loop, callback)
        heapq.heappush(self._timers, (self._now + delay, next(self._order), timer))
        return timer

    async def advance(self, seconds: float) -> None:
        """Move the time, timer by timer, and let the loop settle after each."""
        if seconds < 0:
            raise ValueError("time does not go back: seconds must not be negative")
        until = self._now + seconds
        await self.settle()
        while self._timers and self._timers[0][0] <= until:
            due, _, timer = heapq.heappop(self._timers)
            if timer.callback is None:
                continue
            self._now = max(self._now, due)
            timer.loop.call_soon_threadsafe(timer.callback)
            await self.settle()
        self._now = until
        await self.settle()

    async def settle(self) -> None:
        """Give the loop its turns without moving the time."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    def jump(self, seconds: float) -> None:
        """Move the time and call nobody: what a process sees that was stopped and goes on."""
        if seconds < 0:
            raise ValueError("time does not go back: seconds must not be negative")
        self._now += seconds

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an administrator or NTP may, and leave `now` alone."""
        self._ahead += seconds
