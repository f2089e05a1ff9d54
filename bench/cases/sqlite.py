"""A file that processes share, durable to the last commit: against bare transactions on the same kind of file."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import aiosqlite

from bench.row import Row
from bench.stopwatch import Once, mean, median
from grelmicro_fastapi.coordination import ReadWriteLock
from grelmicro_fastapi.providers.sqlite import SqliteProvider

PAIRS, TASKS, EACH = 40, 50, 4

# What grelmicro 0.41.1 took for one pair, beside two bare transactions. Its tasks share one connection and take turns,
# so fifty at a time cost as much each.
GRELMICRO_WRITE = 2.33


@asynccontextmanager
async def rows() -> AsyncGenerator[list[Row]]:
    with tempfile.TemporaryDirectory() as folder:
        async with SqliteProvider(Path(folder, "locks.sqlite")) as provider, _bare(Path(folder, "bare.sqlite")) as bare:
            pair = _pair(ReadWriteLock("catalog", backend=provider))
            locks = [ReadWriteLock(f"order:{number}", backend=provider) for number in range(TASKS)]
            yield [
                Row(
                    "sqlite: write guard / two bare transactions",
                    partial(median, pair, batches=PAIRS),
                    1.0,
                    partial(median, bare, batches=PAIRS),
                ),
                Row(
                    f"sqlite: each of {TASKS} write guards at a time / two bare transactions",
                    partial(mean, partial(_crowd, locks), operations=TASKS * EACH),
                    GRELMICRO_WRITE / 5,
                    partial(mean, partial(_times, bare, PAIRS), operations=PAIRS),
                    note=f"budget: a fifth of the {GRELMICRO_WRITE} that grelmicro 0.41.1 took, on Python 3.13",
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


async def _crowd(locks: list[ReadWriteLock]) -> None:
    await asyncio.gather(*[_times(_pair(lock), EACH) for lock in locks])


async def _times(once: Once, count: int) -> None:
    for _ in range(count):
        await once()
