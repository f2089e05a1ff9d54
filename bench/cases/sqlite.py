"""A file that processes share, durable to the last commit: against bare transactions on the same kind of file."""

import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import aiosqlite

from bench.peer import grelmicro
from bench.row import Row
from bench.stopwatch import Once, in_a_row, of_milliseconds, together
from grelmicro_fastapi.coordination import ReadWriteLock
from grelmicro_fastapi.providers.sqlite import SqliteProvider

TASKS = 50

RECORDED = 2.33
"""What grelmicro 0.41.1 took for a pair, in terms of two bare transactions, on Python 3.13.

Its tasks share one connection and take turns, so fifty at a time cost as much each.
"""


@asynccontextmanager
async def rows() -> AsyncGenerator[list[Row]]:
    with tempfile.TemporaryDirectory() as folder:
        async with (
            SqliteProvider(Path(folder, "locks.sqlite")) as provider,
            _bare(Path(folder, "bare.sqlite")) as bare,
            grelmicro() as peer,
        ):
            pair = _pair(ReadWriteLock("catalog", backend=provider))
            crowd = [_pair(ReadWriteLock(f"order:{number}", backend=provider)) for number in range(TASKS)]
            alone = "sqlite: write / two bare transactions"
            yield [
                Row(alone, partial(of_milliseconds, pair), 1.0, partial(of_milliseconds, bare)),
                Row(
                    f"sqlite: {TASKS} writes at a time / grelmicro",
                    partial(together, crowd),
                    1 / 5,
                    peer("sqlite together"),
                )
                if peer
                else Row(
                    f"sqlite: {TASKS} writes at a time / two bare transactions",
                    partial(together, crowd),
                    RECORDED / 5,
                    partial(in_a_row, bare),
                    note="budget: a fifth of grelmicro's, recorded",
                ),
            ]


@asynccontextmanager
async def _bare(path: Path) -> AsyncGenerator[Once]:
    async with aiosqlite.connect(path, isolation_level=None) as connection:
        await connection.execute("PRAGMA journal_mode = WAL")
        await connection.execute("PRAGMA synchronous = FULL")
        await connection.execute("CREATE TABLE lock (name TEXT PRIMARY KEY, fence INTEGER)")
        await connection.execute("INSERT INTO lock VALUES ('catalog', 0)")

        async def pair() -> None:
            for _ in range(2):
                await connection.execute("BEGIN IMMEDIATE")
                await connection.execute("UPDATE lock SET fence = fence + 1 WHERE name = 'catalog'")
                await connection.execute("COMMIT")

        yield pair


def _pair(lock: ReadWriteLock) -> Once:
    async def pair() -> None:
        guard = await lock.write.acquire()
        await guard.release()

    return pair
