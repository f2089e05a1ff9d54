"""The stores under test, one row for each way to deploy one. Every suite that runs "on every store" runs on these.

To add a deployment, append a `Row` to `STORES`:

    async def _redis(valkey_url: str) -> AsyncIterator[StoreUnderTest]:     # an async generator that yields once
        clock = ManualClock()
        async with flushed(valkey_url):
            make = lambda: RedisStore(valkey_url, prefix=..., now=milliseconds(clock))
            yield StoreUnderTest(clock, make, write_version)

    STORES.append(Row("valkey", _redis, ("valkey_url",)))

The third field names the fixtures that the generator takes as arguments. They must be plain ones, not `async`.
States must be empty at the start, and their time must be the clock's: hand `milliseconds(clock)` to a store that
takes "now" from outside.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from grelmicro_fastapi.coordination.store import Store
from grelmicro_fastapi.providers.memory import MemoryProvider, MemoryStore
from grelmicro_fastapi.providers.sqlite import SqliteProvider
from grelmicro_fastapi.testing.clock import ManualClock


@dataclass
class StoreUnderTest:
    """A place that keeps states.

    `make` connects one more store to it, as another process would. `write_version(store, key, version)` makes a kept
    state look as if a release with that version of the law had written it.
    """

    clock: ManualClock
    make: Callable[[], Store]
    write_version: Callable[[Any, str, int], Awaitable[None]]
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack, repr=False)

    async def store(self) -> Store:
        """One more store, open until the test ends."""
        store = self.make()
        await store.open()
        self._stack.push_async_callback(store.close)
        return store

    async def stores(self, count: int) -> list[Store]:
        return [await self.store() for _ in range(count)]


@dataclass(frozen=True)
class Row:
    name: str
    deploy: Callable[..., AsyncIterator[StoreUnderTest]]
    needs: tuple[str, ...] = ()


def milliseconds(clock: ManualClock) -> Callable[[], int]:
    """The clock as stores count it."""
    return lambda: int(clock.wall() * 1000)


async def _memory() -> AsyncIterator[StoreUnderTest]:
    async def write_version(store: MemoryStore, key: str, version: int) -> None:
        store._states.kept[key].version = version

    clock = ManualClock()
    yield StoreUnderTest(clock, MemoryProvider(clock=clock)._store, write_version)


async def _sqlite(tmp_path: Path) -> AsyncIterator[StoreUnderTest]:
    path = tmp_path / "locks.db"

    async def write_version(store: Store, key: str, version: int) -> None:
        async with aiosqlite.connect(path) as db:
            await db.execute("UPDATE grelmicro_lock SET version = ? WHERE key = ?", (version, key))
            await db.commit()

    clock = ManualClock()
    # Without fsync: what these tests ask is not whether the disk keeps its word.
    yield StoreUnderTest(clock, SqliteProvider(path, synchronous="OFF", clock=clock)._store, write_version)


STORES = [
    Row("memory", _memory),
    Row("sqlite", _sqlite, ("tmp_path",)),
]


def on_every_store() -> pytest.MarkDecorator:
    """Mark a test or module that takes the fixture `site`: it then runs once for each row."""
    return pytest.mark.parametrize("site_row", STORES, ids=lambda row: row.name)


@pytest.fixture
def site_needs(site_row: Row, request: pytest.FixtureRequest) -> dict[str, Any]:
    return {name: request.getfixturevalue(name) for name in site_row.needs}


@pytest.fixture
async def site(site_row: Row, site_needs: dict[str, Any]) -> AsyncIterator[StoreUnderTest]:
    async with asynccontextmanager(site_row.deploy)(**site_needs) as site:
        try:
            yield site
        finally:
            await site._stack.aclose()
