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

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiosqlite
import asyncpg
import pytest
import redis
from redis.asyncio import Redis as AsyncRedis

from grelmicro_fastapi.coordination.store import Store
from grelmicro_fastapi.providers.kubernetes import KubernetesProvider
from grelmicro_fastapi.providers.kubernetes_names import RECORD
from grelmicro_fastapi.providers.kubernetes_store import KubernetesStore
from grelmicro_fastapi.providers.memory import MemoryProvider, MemoryStore
from grelmicro_fastapi.providers.postgres import PostgresProvider
from grelmicro_fastapi.providers.redis import RedisProvider
from grelmicro_fastapi.providers.redis_provider import RedisLikeProvider
from grelmicro_fastapi.providers.redis_store import RedisStore
from grelmicro_fastapi.providers.sqlite import SqliteProvider
from grelmicro_fastapi.providers.valkey import ValkeyProvider
from grelmicro_fastapi.testing.clock import ManualClock
from tests.servers import kubernetes as cluster_api
from tests.servers.postgres import PostgresServer, find_pgbouncer
from tests.servers.redis import Cluster, Encrypted, Server, Watched, redis_server


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


def _on_redis(provider: RedisLikeProvider, servers: Sequence[Server]) -> StoreUnderTest:
    async def write_version(store: RedisStore, key: str, version: int) -> None:
        for server in servers:
            # Of a cluster's servers, only the owner of the key takes it.
            with server.client() as client, suppress(redis.ResponseError):
                client.hset(provider._prefix + key, "v", version)

    for server in servers:
        with server.client() as client:
            client.flushall()
    clock = ManualClock()
    return StoreUnderTest(clock, lambda: provider._store_on(provider._site(), milliseconds(clock)), write_version)


async def _valkey(valkey_server: Server) -> AsyncIterator[StoreUnderTest]:
    yield _on_redis(ValkeyProvider(valkey_server.url), [valkey_server])


async def _redis_client(valkey_server: Server) -> AsyncIterator[StoreUnderTest]:
    yield _on_redis(RedisProvider(valkey_server.url, prefix="app {1}*:"), [valkey_server])


async def _redis_proper(redis_proper_server: Server) -> AsyncIterator[StoreUnderTest]:
    yield _on_redis(RedisProvider(redis_proper_server.url), [redis_proper_server])


async def _redis_tls(redis_tls: Encrypted) -> AsyncIterator[StoreUnderTest]:
    yield _on_redis(RedisProvider(redis_tls.url("rediss")), [redis_tls.server])


async def _redis_decoding(valkey_server: Server) -> AsyncIterator[StoreUnderTest]:
    client = AsyncRedis(port=valkey_server.port, decode_responses=True, protocol=3)
    yield _on_redis(RedisProvider.from_client(client), [valkey_server])


async def _redis_cluster(cluster: Cluster) -> AsyncIterator[StoreUnderTest]:
    yield _on_redis(RedisProvider(cluster.url), cluster.nodes[:3])


async def _valkey_cluster(cluster: Cluster) -> AsyncIterator[StoreUnderTest]:
    yield _on_redis(ValkeyProvider(cluster.url), cluster.nodes[:3])


async def _redis_sentinel(sentinel: Watched) -> AsyncIterator[StoreUnderTest]:
    yield _on_redis(RedisProvider(sentinel.url), [sentinel.primary()])


def _on_postgres(url: str, **options: str) -> str:
    """The URL, with settings that each of its connections starts with."""
    return f"{url}?{urlencode(options)}" if options else url


@asynccontextmanager
async def _postgres_schema(url: str) -> AsyncIterator[Callable[[PostgresProvider], StoreUnderTest]]:
    admin: asyncpg.Connection = await asyncpg.connect(url)

    async def write_version(store: Store, key: str, version: int) -> None:
        await admin.execute("update grelmicro.lock set version = $2 where key = $1", key, version)

    def site(provider: PostgresProvider) -> StoreUnderTest:
        clock = ManualClock()
        return StoreUnderTest(clock, lambda: provider._store_at(milliseconds(clock)), write_version)

    if await admin.fetchval("select to_regnamespace('grelmicro') is not null"):
        await admin.execute("truncate grelmicro.lock, grelmicro.holder, grelmicro.floor")
    try:
        yield site
    finally:
        await admin.close()


async def _postgres(postgres: PostgresServer) -> AsyncIterator[StoreUnderTest]:
    async with _postgres_schema(postgres.url) as site:
        yield site(PostgresProvider(postgres.url))


async def _postgres_pool(postgres: PostgresServer) -> AsyncIterator[StoreUnderTest]:
    async with _postgres_schema(postgres.url) as site, asyncpg.create_pool(postgres.url, min_size=0) as pool:
        yield site(PostgresProvider.from_client(pool))


async def _postgres_pgbouncer(postgres: PostgresServer, pgbouncer_url: str) -> AsyncIterator[StoreUnderTest]:
    async with _postgres_schema(postgres.url) as site:
        yield site(PostgresProvider(pgbouncer_url, statement_cache_size=0, listen_url=postgres.url))


async def _postgres_time_zone(postgres: PostgresServer) -> AsyncIterator[StoreUnderTest]:
    async with _postgres_schema(postgres.url) as site:
        yield site(PostgresProvider(_on_postgres(postgres.url, timezone="Asia/Kolkata", datestyle="SQL, DMY")))


async def _postgres_search_path(postgres: PostgresServer) -> AsyncIterator[StoreUnderTest]:
    async with _postgres_schema(postgres.url) as site:
        yield site(PostgresProvider(_on_postgres(postgres.url, search_path="elsewhere, public, pg_catalog")))


async def _postgres_repeatable_read(postgres: PostgresServer) -> AsyncIterator[StoreUnderTest]:
    async with _postgres_schema(postgres.url) as site:
        odd = {"default_transaction_isolation": "repeatable read", "default_transaction_read_only": "on"}
        yield site(PostgresProvider(_on_postgres(postgres.url, **odd)))


async def _postgres_serializable(postgres: PostgresServer) -> AsyncIterator[StoreUnderTest]:
    async with _postgres_schema(postgres.url) as site:
        yield site(PostgresProvider(_on_postgres(postgres.url, default_transaction_isolation="serializable")))


async def _postgres_old_snapshot(postgres: PostgresServer) -> AsyncIterator[StoreUnderTest]:
    async with _postgres_schema(postgres.url) as site:
        old: asyncpg.Connection = await asyncpg.connect(postgres.url)
        try:
            async with old.transaction(isolation="repeatable_read"):
                await old.fetchval("select count(*) from pg_class")
                yield site(PostgresProvider(postgres.url))
        finally:
            await old.close()


async def _kubernetes(kubernetes: cluster_api.Cluster) -> AsyncIterator[StoreUnderTest]:
    async def write_version(store: KubernetesStore, key: str, version: int) -> None:
        lease = await store._api.get(store._names.lease(key))
        assert lease
        annotations = lease["metadata"]["annotations"]
        annotations[RECORD] = json.dumps(json.loads(annotations[RECORD]) | {"v": version})
        await store._api.replace(lease)

    clock = ManualClock()
    provider = KubernetesProvider(
        kubernetes.namespace, kubeconfig=kubernetes.kubeconfig, prefix="Ä shop/1:", clock=clock
    )
    await cluster_api.clear(kubernetes)
    yield StoreUnderTest(clock, lambda: provider._store_at(milliseconds(clock)), write_version)


STORES = [
    Row("memory", _memory),
    Row("sqlite", _sqlite, ("tmp_path",)),
    Row("valkey", _valkey, ("valkey_server",)),
    Row("redis-client", _redis_client, ("valkey_server",)),
    Row("redis-decoding", _redis_decoding, ("valkey_server",)),
    Row("redis-cluster", _redis_cluster, ("cluster",)),
    Row("valkey-cluster", _valkey_cluster, ("cluster",)),
    Row("redis-sentinel", _redis_sentinel, ("sentinel",)),
    Row("postgres", _postgres, ("postgres",)),
    Row("postgres-pool", _postgres_pool, ("postgres",)),
    Row("postgres-time-zone", _postgres_time_zone, ("postgres",)),
    Row("postgres-search-path", _postgres_search_path, ("postgres",)),
    Row("postgres-repeatable-read", _postgres_repeatable_read, ("postgres",)),
    Row("postgres-serializable", _postgres_serializable, ("postgres",)),
    Row("postgres-old-snapshot", _postgres_old_snapshot, ("postgres",)),
    Row("kubernetes", _kubernetes, ("kubernetes",)),
]
if find_pgbouncer():
    STORES.append(Row("postgres-pgbouncer", _postgres_pgbouncer, ("postgres", "pgbouncer_url")))
if redis_server():
    STORES.append(Row("redis", _redis_proper, ("redis_proper_server",)))
    STORES.append(Row("redis-tls", _redis_tls, ("redis_tls",)))


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
