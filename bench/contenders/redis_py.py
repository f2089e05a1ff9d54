"""The lock of redis-py, with its own defaults, and the same lease as ours. It has no fence."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from bench.contenders import Contender, Give, Take


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Contender]:
    async with Redis.from_url(url) as client:

        def lock(what: str, name: str) -> Take:
            # Whoever took it is remembered in the lock, so each task has its own.
            one = client.lock(f"redis-py:{what}:{name}", timeout=60)

            async def take() -> Give:
                await one.acquire()
                return one.release

            return take

        yield Contender(lock)
