"""Acquire and release, uncontended, in one process."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from aiorwlock import RWLock

from bench.peer import grelmicro
from bench.row import Block, Row
from bench.stopwatch import of_microseconds
from grelmicro_fastapi.coordination import Lock, ReadWriteLock
from grelmicro_fastapi.coordination.view import View
from grelmicro_fastapi.providers.memory import MemoryProvider

RECORDED = {"lock": 24.4, "read": 29.1, "write": 32.6}
"""What grelmicro 0.41.1 took for a pair, in terms of asyncio.Lock, on Python 3.13: the budget where it is not here."""


@asynccontextmanager
async def rows() -> AsyncGenerator[list[Row]]:
    async with MemoryProvider() as provider, grelmicro() as peer:
        catalog = ReadWriteLock("catalog", backend=provider)
        ours = {
            "lock": _pair(Lock("sweep", backend=provider)),
            "read": _pair(catalog.read),
            "write": _pair(catalog.write),
        }
        if peer:
            rows = [
                Row(f"memory: {name} / grelmicro", pair, 1.0, peer(f"memory {name}")) for name, pair in ours.items()
            ]
        else:
            bare = _bare(asyncio.Lock())
            rows = [
                Row(f"memory: {name} / asyncio.Lock", pair, RECORDED[name], bare, note="budget: grelmicro, recorded")
                for name, pair in ours.items()
            ]
        yield [*rows, Row("memory: write / aiorwlock writer", ours["write"], 1.5, _writer(RWLock()))]


def _pair(view: View[Any]) -> Block:
    async def pair() -> None:
        guard = await view.acquire()
        await guard.release()

    return partial(of_microseconds, pair)


def _bare(lock: asyncio.Lock) -> Block:
    async def pair() -> None:
        await lock.acquire()
        lock.release()

    return partial(of_microseconds, pair)


def _writer(lock: RWLock) -> Block:
    async def pair() -> None:
        await lock.writer_lock.acquire()
        lock.writer_lock.release()

    return partial(of_microseconds, pair)
