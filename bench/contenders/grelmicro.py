"""grelmicro 0.41.1, in a Python environment of its own (see `members.peer`)."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from grelmicro.coordination import Lock, ReadWriteLock

from bench.contenders import Contender, Give, Take

PROVIDERS = {
    "memory": ("memory", "MemoryProvider"),
    "sqlite": ("sqlite", "SQLiteProvider"),
    "redis": ("redis", "RedisProvider"),
    "postgresql": ("postgres", "PostgresProvider"),
}


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Contender]:
    scheme, _, rest = url.partition("://")
    module, name = PROVIDERS[scheme]
    # Each needs a driver that others do without.
    make: Any = getattr(import_module(f"grelmicro.providers.{module}"), name)
    # When a thousand tasks ask, redis-py's default of a hundred connections ends in errors. Its states are not ours.
    where = {
        "memory": (),
        "sqlite": (rest.removeprefix("/"),),
        "redis": (f"{url}/1?max_connections=2000",),
    }.get(scheme, (url,))
    async with make(*where) as provider, provider.lock() as locks, provider.readwritelock() as readwritelocks:

        def lock(what: str, name: str) -> Take:
            # A lock remembers who took it by the running task, so it is shared as its users share it.
            one: Any = Lock(name, backend=locks) if what == "lock" else None
            both: Any = None if one else ReadWriteLock(name, backend=readwritelocks)
            view = one or (both.read if what == "read" else both.write)

            async def take() -> Give:
                await view.acquire()
                return view.release  # type: ignore[no-any-return]  # the peer is not installed where types are checked

            return take

        yield Contender(lock)
