"""A pair of bare calls on one connection to PostgreSQL, each of a function that updates one row. Excludes nobody."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import asyncpg

from bench.contenders import Contender, Give, Take

_TABLE = "create table if not exists bare (name text primary key, fence bigint not null)"
_FUNCTION = """
create or replace function bare_step(which text) returns bigint language plpgsql as $$
declare now_it_is bigint;
begin
    update bare set fence = fence + 1 where name = which returning fence into now_it_is;
    return now_it_is;
end $$
"""


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Contender]:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(_TABLE)
        await connection.execute(_FUNCTION)
        await connection.execute("insert into bare values ('catalog', 0) on conflict do nothing")

        async def step() -> None:
            await connection.fetchval("select bare_step($1)", "catalog")

        def lock(_what: str, _name: str) -> Take:
            async def take() -> Give:
                await step()
                return step

            return take

        yield Contender(lock)
    finally:
        await connection.close()
