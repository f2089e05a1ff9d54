"""Acquire and release, uncontended, in one process."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from aiorwlock import RWLock

from bench.row import Block, Row
from bench.stopwatch import Once, median
from grelmicro_fastapi.coordination import Lock, ReadWriteLock
from grelmicro_fastapi.coordination.view import View
from grelmicro_fastapi.providers.memory import MemoryProvider

# grelmicro 0.41.1 needs Python 3.12, so it may not be here. What it took, measured beside asyncio.Lock on Python 3.13.
GRELMICRO_LOCK, GRELMICRO_READ, GRELMICRO_WRITE = 24.4, 29.1, 32.6
NOTE = "budget: grelmicro 0.41.1 took so many times asyncio.Lock, on Python 3.13"


@asynccontextmanager
async def rows() -> AsyncGenerator[list[Row]]:
    async with MemoryProvider() as provider:
        catalog = ReadWriteLock("catalog", backend=provider)
        bare = _block(_bare(asyncio.Lock()))
        yield [
            Row("memory: Lock / asyncio.Lock", _pair(Lock("sweep", backend=provider)), GRELMICRO_LOCK, bare, note=NOTE),
            Row("memory: read guard / asyncio.Lock", _pair(catalog.read), GRELMICRO_READ, bare),
            Row("memory: write guard / asyncio.Lock", _pair(catalog.write), GRELMICRO_WRITE, bare),
            Row("memory: write guard / aiorwlock writer", _pair(catalog.write), 1.5, _block(_writer(RWLock()))),
        ]


def _block(once: Once) -> Block:
    return partial(median, once, batches=40, each=50)


def _pair(view: View[Any]) -> Block:
    async def pair() -> None:
        guard = await view.acquire()
        await guard.release()

    return _block(pair)


def _bare(lock: asyncio.Lock) -> Once:
    async def pair() -> None:
        await lock.acquire()
        lock.release()

    return pair


def _writer(lock: RWLock) -> Once:
    async def pair() -> None:
        await lock.writer_lock.acquire()
        lock.writer_lock.release()

    return pair
