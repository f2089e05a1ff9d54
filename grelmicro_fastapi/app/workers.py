"""How many processes the server runs: a store in memory would give each of them locks of its own."""

import inspect
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from grelmicro_fastapi.coordination.store import Scope

_SERVERS = {("uvicorn.server", "Server"), ("gunicorn.arbiter", "Arbiter")}


def workers(arguments: Sequence[str], environment: Mapping[str, str], callers: FrameType | None = None) -> int:
    """The most that is known for certain; 1 if nothing is.

    The server that called us knows it best: uvicorn and gunicorn, however they were told. Of others, such as hypercorn
    and granian, the command line tells, which their workers see too.
    """
    if told := [*_told(callers)]:
        return max(told)
    said: list[str | None] = [environment.get("WEB_CONCURRENCY")]
    words = [*shlex.split(environment.get("GUNICORN_CMD_ARGS", "")), *arguments]
    for place, word in enumerate(words):
        option, _, value = word.partition("=")
        if option in ("--workers", "-w"):
            said.append(value or next(iter(words[place + 1 :]), None))
        elif word.startswith("-w") and word[2:].isdigit():
            said.append(word[2:])
    counts = [int(value) for value in said if value and value.isascii() and value.isdigit()]
    return counts[-1] if counts else 1


def several_in_memory(scopes: Iterable[Scope]) -> int:
    """How many workers there are, if they are several and a store reaches only one of them; otherwise 0."""
    count = workers(sys.argv[1:], os.environ, inspect.currentframe())
    return count if count > 1 and Scope.PROCESS in scopes else 0


def _told(frame: FrameType | None) -> Iterator[int]:
    """What the servers among our callers were told. A worker of gunicorn may run a uvicorn, which knows of one only."""
    while frame is not None:
        server: Any = frame.f_locals.get("self")
        if any((kind.__module__, kind.__name__) in _SERVERS for kind in type(server).__mro__):
            options = getattr(server, "config", None) or getattr(server, "cfg", None)
            if isinstance(count := getattr(options, "workers", None), int):
                yield count
        frame = frame.f_back
