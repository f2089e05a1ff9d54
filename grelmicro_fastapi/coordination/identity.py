"""Who is asking: workers, and the tokens of their attempts.

A token proves ownership, so it is a secret: it goes to the store and nowhere else.
"""

import asyncio
import itertools
import os
import secrets
import threading
from contextvars import ContextVar

from grelmicro_fastapi.coordination.state import Mode


class _Process:
    """What is random once per process. A fork gets its own, or parent and child would be one holder."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.worker = secrets.token_hex(8)
        self.secret = secrets.token_hex(8)
        self.attempts = itertools.count(1)


_process = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.renew)


def default_worker() -> str:
    """The name of this process where none was given: random, and another one after a fork."""
    return _process.worker


class ThreadOwner:
    """A thread that acquires through `from_thread`. An object, because the numbers of threads are used again."""

    __slots__ = ("thread",)

    def __init__(self) -> None:
        self.thread = threading.get_ident()


acting_for: ContextVar[ThreadOwner | None] = ContextVar("grelmicro_fastapi_acting_for", default=None)
"""The thread on whose behalf the running task acts."""

Owner = asyncio.Task[object] | ThreadOwner | None


def owner() -> Owner:
    """Who holds what is acquired now: the running task, or the thread that it acts for."""
    return acting_for.get() or asyncio.current_task()


def mint(worker: str | None, owner: Owner) -> str:
    """Make the token of a new attempt of that owner: never given out before, not to be guessed."""
    process = _process
    if type(owner) is ThreadOwner:
        return f"{worker or process.worker}:thread:{owner.thread}:{next(process.attempts)}.{process.secret}"
    return f"{worker or process.worker}:task:{id(owner)}:{next(process.attempts)}.{process.secret}"


def seat(channel: str, mode: Mode) -> str:
    """Name this process's place in the queue of one mode."""
    return f"{channel}/{mode.value}"
