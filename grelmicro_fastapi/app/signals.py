"""Learning at once that the server was told to stop.

Servers let requests finish before they end the lifespan, which may take for ever. Leaders must resign, and waiting
requests be sent away, the moment the signal comes. So the server's handler is chained, and put back at the end.
"""

import asyncio
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """Calls back on the running loop when the process is told to stop. Harmless where handlers cannot be set."""

    def __init__(self, told: Callable[[], None]) -> None:
        self._told = told
        self._loop = asyncio.get_running_loop()
        self._before: dict[signal.Signals, Callable[[int, FrameType | None], Any]] = {}
        self._live = True

    def chain(self) -> None:
        """Put ourselves before the handlers that are there. Defaults are left alone: they end the process anyway."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            before = signal.getsignal(number)
            if callable(before):
                self._before[number] = before
                signal.signal(number, self._handle)

    def restore(self) -> None:
        """Put the handlers back. Where somebody chained behind us, we only fall silent."""
        self._live = False
        if threading.current_thread() is not threading.main_thread():
            return
        for number, before in self._before.items():
            # Each access to a method makes a new object, so equality is meant.
            if signal.getsignal(number) == self._handle:
                signal.signal(number, before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._live and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._told)
        self._before[signal.Signals(number)](number, frame)
