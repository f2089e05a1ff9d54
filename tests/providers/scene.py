"""A lock behind a bad network, for tests that slow one connection down while others run."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from grelmicro_fastapi.coordination.readwritelock import ReadWriteLock
from grelmicro_fastapi.coordination.state import State
from grelmicro_fastapi.providers.base import Provider
from tests.faultproxy import FaultProxy, Held, fault_proxy
from tests.providers.networked import PATIENCE, Networked, mine, persistent, prepared, settled, state_of

T = TypeVar("T")

_names = itertools.count()


@dataclass
class Scene:
    """A lock, seen by a provider behind the proxy, `here`, and by one that speaks to the server itself, `there`."""

    proxy: FaultProxy
    name: str
    here: Provider
    there: Provider

    def __post_init__(self) -> None:
        self.mine: ReadWriteLock = mine(self.name, self.here)
        self.theirs: ReadWriteLock = mine(self.name, self.there)

    async def prepared(self, acquire: Callable[[], Awaitable[T]]) -> T:
        """A guard of mine to begin with."""
        return await prepared(acquire, self.here)

    def hold(self) -> Held:
        """The next connection that says something of this lock is slow from then on."""
        return self.proxy.hold("up", self.name)

    async def state(self) -> State:
        return (await state_of(self.there, self.name)).state

    async def until(self, condition: Callable[[State], object]) -> State:
        """Look until the store's state is such."""
        async with asyncio.timeout(PATIENCE):
            while True:
                state = await self.state()
                if condition(state):
                    return state
                await asyncio.sleep(0.01)  # the store tells nobody who merely looks

    async def is_left_as_new(self) -> None:
        """Nothing is in it, nobody hears tales of a writer that died, and whoever comes gets in, on both sides."""
        async with asyncio.timeout(PATIENCE):
            await self.until(lambda state: not (state.writer or state.readers or state.seats))
            for lock in (self.theirs, self.mine):
                guard = await persistent(lock.write.acquire)
                assert not guard.poisoned
                await settled(guard)


@pytest.fixture
async def scene(networked: Networked, networked_server: Any) -> AsyncIterator[Scene]:
    port, name = networked.port(networked_server), f"overtaking-{next(_names)}"
    async with (
        fault_proxy(port) as proxy,
        networked.connect(proxy.port) as here,
        networked.straight(networked_server) as there,
    ):
        # Scripts and statements are known from here on, so that only the name's own requests are held.
        await settled(await prepared(mine(f"warm-{name}", here).write.acquire, here))
        yield Scene(proxy, name, here, there)
