"""PostgreSQL, uncontended, with a disk that is waited for."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from bench import servers
from bench.cases.redis import READERS, TASKS, names, pair, readers
from bench.members import member, peers
from bench.row import Row, against_peer


@asynccontextmanager
async def rows() -> AsyncGenerator[list[Row]]:
    with servers.postgres() as url:
        async with member("ours", url) as ours, member("row_updates", url) as bare, peers(url) as peer:
            many, crowd = (names(peer[0]), readers(peer[0])) if peer else (None, None)
            yield [
                Row("postgres: write / two row updates", pair(ours, "write"), 1.3, pair(bare, "write")),
                against_peer(f"postgres: {TASKS} names at a time", names(ours), 1 / 4, many),
                against_peer(f"postgres: {READERS:,} readers of a name", readers(ours), 1 / 5, crowd),
            ]
