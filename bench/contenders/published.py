"""A key taken by SET NX, and waited for by SUBSCRIBE, through redis-py: the least for a lock that wakes by pub/sub."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from bench.contenders import Contender, Give, Take

_GIVE = "redis.call('del', KEYS[1]) return redis.call('publish', 'freed', KEYS[1])"
_LEASE = 60_000


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Contender]:
    async with Redis.from_url(url) as client, client.pubsub(ignore_subscribe_messages=True) as channel:
        sha = await client.script_load(_GIVE)
        freed = asyncio.Event()
        await channel.subscribe("freed")

        async def hear() -> None:
            async for _ in channel.listen():
                freed.set()

        def lock(_: str, name: str) -> Take:
            key = f"published:{name}"

            async def give() -> None:
                await client.evalsha(sha, 1, key)

            async def take() -> Give:
                while True:
                    freed.clear()
                    if await client.set(key, "held", nx=True, px=_LEASE):
                        return give
                    await freed.wait()

            return take

        hearing = asyncio.create_task(hear())
        try:
            yield Contender(lock)
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
