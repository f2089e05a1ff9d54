"""What can be measured: each module opens one kind of lock, and `load` finds it by the module's name.

A contender runs in processes of its own (see `member`), and may live in an environment without this library.
"""

import importlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import cast

Give = Callable[[], Awaitable[object]]
"""Gives back what was taken."""
Take = Callable[[], Awaitable[Give]]
"""Takes a lock, waiting for it if need be."""


async def _as_it_is(_: str) -> None:
    """Nothing has to be made."""


async def _not_kept(_names: list[str], _lease: float) -> list[Callable[[], float]]:
    raise NotImplementedError("this contender keeps nothing alive")


@dataclass
class Contender:
    """One kind of lock, connected.

    `lock(what, name)` is the lock of that name, where `what` is "lock", "read" or "write" for those who tell them
    apart. `make` is called once for a new name, before anybody takes it. `asked` says how many commands it has sent, if
    it counts them, and `kept` takes locks of these names that are kept alive from a lease of so many seconds, and says
    for how many seconds each is good without that.
    """

    lock: Callable[[str, str], Take]
    make: Callable[[str], Awaitable[object]] = _as_it_is
    asked: Callable[[], int] = lambda: 0
    kept: Callable[[list[str], float], Awaitable[list[Callable[[], float]]]] = _not_kept


Opened = Callable[[str], AbstractAsyncContextManager[Contender]]
"""Connects to a URL."""


def load(kind: str) -> Opened:
    """Find a contender by name."""
    return cast("Opened", importlib.import_module(f"bench.contenders.{kind}").opened)
