"""Who is asking: workers, and the tokens of their attempts.

A token proves ownership, so it is a secret: it goes to the store and nowhere else.
"""

import itertools
import os
import secrets

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


def mint(worker: str | None, task: object) -> str:
    """Make the token of a new attempt of that task: never given out before, not to be guessed."""
    process = _process
    return f"{worker or process.worker}:task:{id(task):x}:{next(process.attempts):x}.{process.secret}"


def seat(channel: str, mode: Mode) -> str:
    """Name this process's place in the queue of one mode."""
    return f"{channel}/{mode.value}"
