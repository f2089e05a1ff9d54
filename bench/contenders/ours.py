"""This library, on the store that the URL names."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from bench.contenders import Contender, Give, Take
from grelmicro_fastapi.coordination import Lock, ReadWriteLock
from grelmicro_fastapi.coordination.store import Answer, Ask
from grelmicro_fastapi.providers.urls import provider_from_url


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Contender]:
    async with provider_from_url(url) as provider:
        store = provider.backend.crew().store
        carry, asked = store.apply, 0

        async def apply(asks: Sequence[Ask]) -> Sequence[Answer]:
            nonlocal asked
            asked += len(asks)
            return await carry(asks)

        def lock(what: str, name: str) -> Take:
            if what == "lock":
                view = Lock(name, backend=provider)
            else:
                both = ReadWriteLock(name, backend=provider)
                view = both.read if what == "read" else both.write

            async def take() -> Give:
                return (await view.acquire()).release

            return take

        store.apply = apply
        yield Contender(lock, asked=lambda: asked)
