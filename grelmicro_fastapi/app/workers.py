"""How many processes the server was told to run: a store in memory would give each of them locks of its own."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence

from grelmicro_fastapi.coordination.store import Scope


def workers(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """As `uvicorn`, `fastapi run`, gunicorn, hypercorn and granian are told; 1 if nothing is said.

    A worker that uvicorn starts sees the arguments of its parent.
    """
    said: list[str | None] = [environment.get("WEB_CONCURRENCY")]
    for place, argument in enumerate(arguments):
        option, _, value = argument.partition("=")
        if option in ("--workers", "-w"):
            said.append(value or next(iter(arguments[place + 1 :]), None))
    counts = [int(value) for value in said if value and value.isascii() and value.isdigit()]
    return counts[-1] if counts else 1


def split(scopes: Iterable[Scope]) -> str | None:
    """A warning, if a store reaches one process only and the server runs several."""
    several = workers(sys.argv[1:], os.environ)
    if several < 2 or Scope.PROCESS not in scopes:
        return None
    return (
        f"{several} workers, and a store that reaches one process only: each has locks of its own, which exclude "
        "nobody in the others. SqliteProvider reaches all processes of one machine"
    )
