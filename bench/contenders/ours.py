"""This library, on the store that the URL names."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from bench.contenders import Contender, Give, Take
from grelmicro_fastapi.coordination import Lock, ReadWriteLock, WriteGuard
from grelmicro_fastapi.coordination.store import Answer, Ask, Flight, Landed, SwiftStore
from grelmicro_fastapi.providers.urls import provider_from_url


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Contender]:
    async with provider_from_url(url) as provider:
        store = provider.backend.crew().store
        carry, send, asked = store.apply, store.send if isinstance(store, SwiftStore) else None, 0

        async def apply(asks: Sequence[Ask]) -> Sequence[Answer]:
            nonlocal asked
            asked += len(asks)
            return await carry(asks)

        def sent(asks: Sequence[Ask], landed: Landed) -> Flight | None:
            nonlocal asked
            assert send
            if flight := send(asks, landed):
                asked += len(asks)
            return flight

        def lock(what: str, name: str) -> Take:
            if what == "lock":
                view = Lock(name, backend=provider)
            else:
                both = ReadWriteLock(name, backend=provider)
                view = both.read if what == "read" else both.write

            async def take() -> Give:
                return (await view.acquire()).release

            return take

        guards: list[WriteGuard] = []

        async def kept(names: list[str], lease: float) -> list[Callable[[], float]]:
            locks = [ReadWriteLock(name, backend=provider, lease_duration=lease, keep_alive=True) for name in names]
            guards.extend(await asyncio.gather(*[lock.write.acquire() for lock in locks]))
            return [partial(_left, guard) for guard in guards]

        # Before anybody has asked for anything: whoever asks keeps hold of these.
        store.apply = apply
        if send:
            store.send = sent
        yield Contender(lock, asked=lambda: asked, kept=kept)


def _left(guard: WriteGuard) -> float:
    return guard.expires_in
