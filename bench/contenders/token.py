"""A token in a list, taken by BLPOP through redis-py: the least that a hand-over can cost there. It has no lease."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from bench.contenders import Contender, Give, Take


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Contender]:
    async with Redis.from_url(url) as client:

        async def make(name: str) -> None:
            await client.rpush(name, "token")

        def lock(_: str, name: str) -> Take:
            async def give() -> None:
                await client.rpush(name, "token")

            async def take() -> Give:
                await client.blpop(name, 0)
                return give

            return take

        yield Contender(lock, make)
