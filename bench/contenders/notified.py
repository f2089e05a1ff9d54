"""A row in PostgreSQL, taken by an update, and waited for by LISTEN: the least of its kind. It has no lease."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import asyncpg

from bench.contenders import Contender, Give, Take

_TABLE = "create table if not exists notified (name text primary key, held boolean not null)"
_GIVE = """
create or replace function notified_give(which text) returns void language plpgsql as $$
begin
    update notified set held = false where name = which;
    perform pg_notify('notified', which);
end $$
"""
_TAKE = "update notified set held = true where name = $1 and not held returning true"


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Contender]:
    connection, ear = await asyncpg.connect(url), await asyncpg.connect(url)
    freed = asyncio.Event()
    try:
        async with connection.transaction():
            # Several start at once.
            await connection.execute("select pg_advisory_xact_lock(1)")
            await connection.execute(_TABLE)
            await connection.execute(_GIVE)
        await ear.add_listener("notified", lambda *_: freed.set())

        async def make(name: str) -> None:
            await connection.execute("insert into notified values ($1, false)", name)

        def lock(_: str, name: str) -> Take:
            async def give() -> None:
                await connection.fetchval("select notified_give($1)", name)

            async def take() -> Give:
                while True:
                    freed.clear()
                    if await connection.fetchval(_TAKE, name):
                        return give
                    await freed.wait()

            return take

        yield Contender(lock, make)
    finally:
        await ear.close()
        await connection.close()
