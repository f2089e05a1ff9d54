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


@dataclass
class Contender:
    """One kind of lock, connected.

    `lock(what, name)` is the lock of that name, where `what` is "lock", "read" or "write" for those who tell them
    apart. `make` is called once for a new name, before anybody takes it. `asked` says how many commands it has sent, if
    it counts them.
    """

    lock: Callable[[str, str], Take]
    make: Callable[[str], Awaitable[object]] = _as_it_is
    asked: Callable[[], int] = lambda: 0


Opened = Callable[[str], AbstractAsyncContextManager[Contender]]
"""Connects to a URL."""


def load(kind: str) -> Opened:
    """Find a contender by name."""
    return cast("Opened", importlib.import_module(f"bench.contenders.{kind}").opened)
