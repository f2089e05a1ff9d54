"""One command on its way, and what is said when no answer comes."""

import logging
from collections.abc import Callable
from typing import Protocol

from grelmicro_fastapi.coordination.state import Command
from grelmicro_fastapi.coordination.store import Answer
from grelmicro_fastapi.errors import BackendError

_log = logging.getLogger("grelmicro_fastapi.coordination")

OPERATION = 5.0
"""Seconds that one call to a store may take."""

RENEWALS = "renewals"
"""The lane of its own that keeps renewals apart from everything else."""


class Asker(Protocol):
    """The future of a caller who waits."""

    def done(self) -> bool:
        """Is the wait over, one way or another?"""
        ...


class Parcel:
    """One command on its way.

    `done` is called once with the answer, unless the `asker` was settled before it left. `left` is the clock's time
    just before it was sent, or None. Its batch is given up after `bound` seconds.
    """

    __slots__ = ("asker", "bound", "command", "done", "key", "left")

    def __init__(
        self,
        key: str,
        command: Command,
        done: Callable[[Answer], object],
        bound: float = OPERATION,
        asker: Asker | None = None,
    ) -> None:
        self.key = key
        self.command = command
        self.done = done
        self.bound = bound
        self.asker = asker
        self.left: float | None = None

    @property
    def wanted(self) -> bool:
        """Does anybody still wait for the answer? One who is cancelled does not, from that very moment on."""
        return self.asker is None or not self.asker.done()


def broken_promise(call: str, error: Exception) -> BackendError:
    """Log what a store must not raise, and say that it failed."""
    _log.error("a store broke its promise: only BackendError may leave %s", call, exc_info=error)
    failure = BackendError(f"the store failed: {type(error).__name__}")
    failure.__cause__ = error
    return failure


def silence(seconds: float) -> BackendError:
    """Say that no answer came."""
    return BackendError(f"the store did not answer within {seconds:.3g} s")


def closed(sent: bool) -> BackendError:
    """Say that no answer can come any more."""
    error = BackendError("the connection to the store is closed: open the provider again")
    error.sent = sent
    return error
