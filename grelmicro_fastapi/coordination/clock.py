"""Time, handed in.

Deadlines are kept on the boot clock where the machine has one: a laptop or a virtual machine that slept must not
wake up with guards that still look valid.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol


class Timer(Protocol):
    """A callback that is still to come."""

    def cancel(self) -> None:
        """Never call it. Harmless if it was called already."""
        ...


class Clock(Protocol):
    """Where every deadline, pause and timer of the library comes from."""

    def now(self) -> float:
        """Seconds since some fixed moment. Never goes back."""
        ...

    def wall(self) -> float:
        """Seconds since 1970, as the host believes. Never used for a deadline."""
        ...

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Call back on the running loop after `delay` seconds, at once if it is not positive."""
        ...


class SystemClock:
    """The host's clock."""

    now = staticmethod(
        partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
    )
    """Seconds since the machine booted, sleep included where the platform counts it."""

    def wall(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Call back on the running loop."""
        return asyncio.get_running_loop().call_later(max(delay, 0.0), callback)
