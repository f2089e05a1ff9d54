"""Two services that do the same: one under our guard, one with the two scripts of a hand-written lock."""

import itertools
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI
from redis.asyncio import Redis

from grelmicro_fastapi import Grelmicro, WriteGuard, write_guard
from grelmicro_fastapi.providers.redis import RedisProvider

URL = os.environ["REDIS_URL"]
LEASE = 60_000

guarded = FastAPI(lifespan=Grelmicro(uses=[RedisProvider(URL)]).lifespan)


@guarded.put("/orders/{order}")
async def put_guarded(order: int, guard: Annotated[WriteGuard, Depends(write_guard("order:{order}"))]) -> int:
    return guard.fencing_token


_TAKE = """
if redis.call('set', KEYS[1], ARGV[1], 'nx', 'px', ARGV[2]) then return redis.call('incr', KEYS[2]) end
return false
"""
_GIVE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"

client = Redis.from_url(URL)
_shas: list[str] = []
_tokens = itertools.count()


@asynccontextmanager
async def _opened(_: FastAPI) -> AsyncGenerator[None]:
    async with client:
        _shas.extend([await client.script_load(script) for script in (_TAKE, _GIVE)])
        yield


async def _held(order: int) -> AsyncGenerator[int]:
    take, give = _shas
    key, token = f"bare:{order}", str(next(_tokens))
    fence = await client.evalsha(take, 2, key, f"{key}:fence", token, LEASE)
    yield int(fence)
    await client.evalsha(give, 1, key, token)


bare = FastAPI(lifespan=_opened)


@bare.put("/orders/{order}")
async def put_bare(order: int, fence: Annotated[int, Depends(_held)]) -> int:
    return fence
