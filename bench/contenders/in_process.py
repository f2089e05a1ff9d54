"""Locks that reach one process: the URL says which, "asyncio" or "aiorwlock"."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiorwlock import RWLock

from bench.contenders import Contender, Give, Take

MAKE: dict[str, Callable[[], Any]] = {"asyncio": asyncio.Lock, "aiorwlock": lambda: RWLock().writer_lock}


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Contender]:
    locks: dict[str, Any] = {}

    def lock(_: str, name: str) -> Take:
        one = locks.setdefault(name, MAKE[url]())

        async def give() -> None:
            one.release()

        async def take() -> Give:
            await one.acquire()
            return give

        return take

    yield Contender(lock)
