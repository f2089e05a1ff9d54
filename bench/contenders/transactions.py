"""Two bare transactions on an SQLite file through aiosqlite, durable as ours are. Excludes nobody."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiosqlite

from bench.contenders import Contender, Give, Take


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Contender]:
    async with aiosqlite.connect(url.removeprefix("sqlite:///"), isolation_level=None) as connection:
        await connection.execute("PRAGMA journal_mode = WAL")
        await connection.execute("PRAGMA synchronous = FULL")
        await connection.execute("CREATE TABLE lock (name TEXT PRIMARY KEY, fence INTEGER)")
        await connection.execute("INSERT INTO lock VALUES ('catalog', 0)")

        async def step() -> None:
            await connection.execute("BEGIN IMMEDIATE")
            await connection.execute("UPDATE lock SET fence = fence + 1 WHERE name = 'catalog'")
            await connection.execute("COMMIT")

        def lock(_what: str, _name: str) -> Take:
            async def take() -> Give:
                await step()
                return step

            return take

        yield Contender(lock)
