"""The lock of python-redis-lock, with the same lease as ours. It has no fence.

It blocks, as its users call it, so nothing else of its process runs meanwhile: a member holds one of them at a time.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import redis_lock
from redis import Redis

from bench.contenders import Contender, Give, Take

_LEASE = 60


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Contender]:
    with Redis.from_url(url) as client:

        def lock(what: str, name: str) -> Take:
            # Whoever took it is remembered in the lock, so each process has its own.
            one = redis_lock.Lock(client, f"{what}:{name}", expire=_LEASE)

            async def give() -> None:
                one.release()

            async def take() -> Give:
                one.acquire()
                return give

            return take

        yield Contender(lock)
