"""What is peculiar to PostgreSQL. What every store promises is in the contract suite."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from grelmicro_fastapi.coordination.lock import Lock
from grelmicro_fastapi.coordination.readwritelock import ReadWriteLock
from grelmicro_fastapi.coordination.state import CLAIM, Acquire, Leave, Mode, Release, Reply, Undo, Verdict
from grelmicro_fastapi.coordination.store import Ask, Wake
from grelmicro_fastapi.errors import BackendError, SettingsValidationError
from grelmicro_fastapi.providers.postgres import PostgresProvider
from grelmicro_fastapi.providers.postgres_connections import Held
from grelmicro_fastapi.providers.postgres_schema import SOURCE, sql
from grelmicro_fastapi.providers.postgres_store import PostgresStore
from grelmicro_fastapi.providers.postgres_wire import Letter
from tests.faultproxy import fault_proxy
from tests.servers.postgres import PostgresServer, find_pgbouncer, running_postgres

pytestmark = pytest.mark.anyio

SECRET = "hunter2"


def write(token: str, seat: str = "", key: str = "lock:a") -> Ask:
    return Ask(key, Acquire(token, Mode.WRITE, 60_000, seat), CLAIM)


def release(token: str, key: str = "lock:a") -> Ask:
    return Ask(key, Release(token), CLAIM)


@asynccontextmanager
async def opened(provider: PostgresProvider, **given: Any) -> AsyncIterator[PostgresStore]:
    store = provider._store()
    for name, value in given.items():
        setattr(store, name, value)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def reply(store: PostgresStore, ask: Ask) -> Reply:
    (answer,) = await store.apply([ask])
    assert isinstance(answer, Reply), answer
    return answer


@pytest.fixture
async def admin(postgres: PostgresServer) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(postgres.url)
    await connection.execute("set client_min_messages = warning; drop schema if exists grelmicro cascade")
    yield connection
    await connection.close()


async def until(admin: "asyncpg.Connection[asyncpg.Record]", question: str) -> None:
    """Wait until the server answers yes."""
    async with asyncio.timeout(10):
        while True:
            if await admin.fetchval(question):
                return
            await asyncio.sleep(0.005)


async def insistently(release: Callable[[], Awaitable[None]]) -> None:
    """Once more if there was no verdict, as a guard allows."""
    try:
        await release()
    except BackendError:
        await release()


WAITING = "select exists (select from pg_locks where locktype = 'advisory' and not granted)"


# Settings


def test_a_provider_needs_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTGRES_URL", raising=False)
    with pytest.raises(SettingsValidationError, match="POSTGRES_URL"):
        PostgresProvider()


async def test_the_url_may_come_from_the_environment(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTGRES_URL", postgres.url)
    async with PostgresProvider() as provider:
        await provider.check()


@pytest.mark.parametrize("url", [f"mysql://me:{SECRET}@host/db", SECRET, f"postgresql://me:{SECRET}@[half/db"])
def test_a_url_that_is_none_is_not_quoted(url: str) -> None:
    with pytest.raises(SettingsValidationError) as refused:
        PostgresProvider(url)
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__context__ is None


async def test_a_password_is_in_no_repr_and_no_error() -> None:
    provider = PostgresProvider(f"postgresql://me:{SECRET}@127.0.0.1:1/db")
    assert SECRET not in repr(provider)
    with pytest.raises(BackendError) as refused:
        await provider._store().open()
    assert SECRET not in str(refused.value)
    assert not refused.value.sent


@pytest.mark.parametrize("schema", ["", "1st", "pg_locks", 'a"b', "ä", "x" * 64])
def test_a_schema_needs_a_plain_name(schema: str) -> None:
    with pytest.raises(SettingsValidationError, match="schema="):
        PostgresProvider("postgresql://", schema=schema)


async def test_a_url_of_sqlalchemy_is_taken(postgres: PostgresServer) -> None:
    url = postgres.url.replace("postgresql://", "postgresql+asyncpg://")
    async with PostgresProvider(f"{url}?ssl=disable&prepared_statement_cache_size=0") as provider:
        await provider.check()
        assert provider._cached == 0


async def test_of_several_hosts_the_one_that_takes_writes_is_used(postgres: PostgresServer) -> None:
    url = postgres.url.replace("@127.0.0.1", "@127.0.0.1:1,127.0.0.1")
    async with PostgresProvider(url) as provider:
        await provider.check()


# The schema


async def test_eight_that_start_at_once_make_one_schema(
    postgres: PostgresServer, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    stores = [PostgresProvider(postgres.url)._store() for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    verdicts = [await reply(store, write(f"t{number}")) for number, store in enumerate(stores)]
    assert [found.verdict for found in verdicts].count(Verdict.GRANTED) == 1
    await asyncio.gather(*(store.close() for store in stores))


async def test_a_missing_schema_that_may_not_be_made_is_an_error_that_names_the_cure(
    postgres: PostgresServer, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    provider = PostgresProvider(postgres.url, auto_migrate=False)
    with pytest.raises(SettingsValidationError, match=r"sql\(\)"):
        await provider.open()
    await admin.execute(provider.sql())
    async with provider:
        await provider.check()


async def test_an_old_schema_is_brought_up_to_date_and_a_newer_one_left_alone(
    postgres: PostgresServer, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    await admin.execute(sql("grelmicro"))
    await admin.execute("update grelmicro.edition set edition = 0; drop function grelmicro.peek_v1")
    async with opened(PostgresProvider(postgres.url)) as store:
        await store.peek("lock:a")
    await admin.execute("update grelmicro.edition set edition = 99; drop function grelmicro.peek_v1")
    async with opened(PostgresProvider(postgres.url)) as store:
        with pytest.raises(BackendError):
            await store.peek("lock:a")


async def test_a_role_without_rights_is_told_what_to_run(
    postgres: PostgresServer, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    await admin.execute("drop role if exists poor; create role poor login")
    url = postgres.url.replace("postgres@", "poor@")
    with pytest.raises(SettingsValidationError, match="may not make"):
        await PostgresProvider(url)._store().open()
    await admin.execute(sql("grelmicro"))
    await admin.execute("grant usage on schema grelmicro to poor")
    await admin.execute("grant select, insert, update, delete on all tables in schema grelmicro to poor")
    async with opened(PostgresProvider(url)) as store:
        assert (await reply(store, write("one"))).verdict is Verdict.GRANTED
    await admin.execute("drop owned by poor; drop role poor")


async def test_a_schema_that_vanishes_is_made_again(
    postgres: PostgresServer, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    async with opened(PostgresProvider(postgres.url)) as store:
        await admin.execute("drop schema grelmicro cascade")
        with pytest.raises(BackendError):
            await store.apply([write("one")])
        assert (await reply(store, write("two"))).verdict is Verdict.GRANTED


# Time, isolation, durability


async def test_a_lease_begins_when_the_lock_is_had_and_not_when_it_was_asked_for(
    postgres: PostgresServer, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    async with opened(PostgresProvider(postgres.url)) as store:
        async with admin.transaction():
            await admin.execute("select pg_advisory_xact_lock(grelmicro.lock_number_v1('lock:a'))")
            granted = asyncio.create_task(reply(store, write("one")))
            await until(admin, WAITING)
            clock = await admin.fetchval("select floor(extract(epoch from clock_timestamp()) * 1000)::bigint")
        assert (await granted).verdict is Verdict.GRANTED
        writer = (await store.peek("lock:a")).state.writer
        assert writer is not None
        assert writer.since >= clock


async def test_time_zones_share_one_clock(
    postgres: PostgresServer, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    zones = [PostgresProvider(f"{postgres.url}?timezone={zone}") for zone in ("UTC", "Asia/Tokyo")]
    async with opened(zones[0]) as west, opened(zones[1]) as east:
        assert (await reply(east, write("one"))).verdict is Verdict.GRANTED
        assert (await reply(west, write("two"))).verdict is Verdict.HELD
        assert abs((await west.peek("lock:a")).now - (await east.peek("lock:a")).now) < 60_000


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_the_law_refuses_an_older_snapshot(admin: "asyncpg.Connection[asyncpg.Record]", isolation: Any) -> None:
    await admin.execute(sql("grelmicro"))
    letter = Letter([write("one")])
    with pytest.raises(asyncpg.PostgresError) as refused:
        async with admin.transaction(isolation=isolation):
            await admin.fetchval("select grelmicro.apply_v1($1, $2::text::jsonb, '', null)", letter.keys, letter.body)
    assert refused.value.sqlstate == "GM001"


async def test_both_lanes_may_learn_at_once_that_transactions_are_not_read_committed_by_default(
    postgres: PostgresServer, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    async with opened(PostgresProvider(f"{postgres.url}?default_transaction_isolation=serializable")) as store:
        # So that there are two connections, and neither has to be waited for.
        await asyncio.gather(store.peek("lock:a"), store.peek("lock:b"))
        both = await asyncio.gather(reply(store, write("one")), reply(store, write("two", key="lock:b")))
        assert [answer.verdict for answer in both] == [Verdict.GRANTED] * 2


async def test_grants_are_durable_and_releases_and_refusals_need_not_wait_for_the_disk(
    admin: "asyncpg.Connection[asyncpg.Record]",
) -> None:
    await admin.execute(sql("grelmicro"))

    async def commits(*asks: Ask) -> str:
        letter = Letter(asks)
        async with admin.transaction():
            query = "select grelmicro.apply_v1($1, $2::text::jsonb, '', null)"
            await admin.fetchval(query, letter.keys, letter.body)
            how = await admin.fetchval("show synchronous_commit")
        return str(how)

    assert await commits(write("one")) == "on"
    assert await commits(write("two", "a/w")) == "off"
    assert await commits(release("one")) == "off"
    assert await commits(Ask("lock:a", Undo("two"), CLAIM)) == "on"
    assert await commits(write("three", key="lock:b")) == "on"
    assert await commits(release("three", "lock:b")) == "off"
    assert await commits(release("nobody", "lock:b"), write("four", key="lock:b")) == "on"
    assert await commits(Ask("lock:a", Leave("a/w"), CLAIM)) == "off"
    # One leaves, and its successor asks in the same batch.
    assert await commits(write("one", "a/w", key="lock:c")) == "on"
    assert await commits(release("one", "lock:c"), write("two", "a/w", key="lock:c")) == "on"
    assert await commits(write("three", "b/w", key="lock:c")) == "off"
    assert await commits(release("two", "lock:c"), write("four", "a/w", key="lock:c")) == "off"
    assert await commits(write("three", "b/w", key="lock:c")) == "on"
    assert await commits(release("three", "lock:c"), Ask("lock:c", Undo("four"), CLAIM)) == "on"


async def test_batches_in_opposite_orders_do_not_wait_for_each_other(
    postgres: PostgresServer, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    async with opened(PostgresProvider(postgres.url)) as one, opened(PostgresProvider(postgres.url)) as two:

        async def hammer(store: PostgresStore, keys: list[str], token: str) -> None:
            for _ in range(150):
                await store.apply([write(token, key=key) for key in keys])
                await store.apply([release(token, key) for key in keys])

        names = [f"lock:{number}" for number in range(6)]
        await asyncio.gather(hammer(one, names, "one"), hammer(two, names[::-1], "two"))
    assert await admin.fetchval("select sum(deadlocks) from pg_stat_database") == 0


# What no database takes


async def test_what_cannot_be_stored_fails_alone(
    postgres: PostgresServer, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    async with opened(PostgresProvider(postgres.url)) as store:
        odd = Acquire("one", Mode.WRITE, 2**70)
        asks = [write("one"), write("two\0", key="lock:b"), write("two", key="lock:\ud800"), Ask("lock:c", odd, CLAIM)]
        found = await store.apply([*asks, write("two", key="lock:d")])
        assert [isinstance(answer, Reply) for answer in found] == [True, False, False, False, True]
        assert all(not answer.sent for answer in found if isinstance(answer, BackendError))


async def test_a_token_is_in_no_error(postgres: PostgresServer, admin: "asyncpg.Connection[asyncpg.Record]") -> None:
    async with opened(PostgresProvider(postgres.url)) as store:
        (refused,) = await store.apply([Ask("lock:a", Acquire(f"{SECRET}\0", Mode.READ, 1), CLAIM)])
        assert isinstance(refused, BackendError)
        assert SECRET not in repr((refused, refused.__cause__, str(refused)))
        # A row that should not be there: the server quotes its token.
        await reply(store, write("other", key="lock:b"))
        await admin.execute("insert into grelmicro.holder values ('lock:c', $1, false, 1)", SECRET)
        with pytest.raises(BackendError) as raised:
            await store.apply([Ask("lock:c", Acquire(SECRET, Mode.READ, 1), CLAIM)])
        assert SECRET not in repr((raised.value, raised.value.__cause__, str(raised.value)))


# Trouble


async def test_a_statement_timeout_is_an_error_that_leaves_nothing_behind(
    postgres: PostgresServer, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    async with opened(PostgresProvider(f"{postgres.url}?statement_timeout=200")) as store:
        async with admin.transaction():
            await admin.execute("select pg_advisory_xact_lock(grelmicro.lock_number_v1('lock:a'))")
            with pytest.raises(BackendError, match="57014") as refused:
                await store.apply([write("one")])
            assert not refused.value.sent
        assert (await store.peek("lock:a")).state.writer is None
        assert (await reply(store, write("two"))).verdict is Verdict.GRANTED


async def test_a_request_whose_sender_has_gone_does_not_land_late(
    postgres: PostgresServer, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    hasty = sql("grelmicro", SOURCE.replace("'lock_timeout', '4s'", "'lock_timeout', '100ms'"))
    await admin.execute(hasty)
    async with opened(PostgresProvider(postgres.url)) as store:
        async with admin.transaction():
            await admin.execute("select pg_advisory_xact_lock(grelmicro.lock_number_v1('lock:a'))")
            asking = asyncio.create_task(store.apply([write("one")]))
            await until(admin, WAITING)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await until(admin, WAITING.replace("exists", "not exists"))
        assert (await store.peek("lock:a")).state.writer is None


async def test_a_cancelled_call_drops_its_connection(
    postgres: PostgresServer, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    async with opened(PostgresProvider(postgres.url)) as store:
        connections = store._connections
        assert isinstance(connections, Held)
        (link,) = connections._idle
        async with admin.transaction():
            await admin.execute("select pg_advisory_xact_lock(grelmicro.lock_number_v1('lock:a'))")
            asking = asyncio.create_task(store.apply([write("one")]))
            await until(admin, WAITING)
            assert (await reply(store, write("two", key="lock:b"))).verdict is Verdict.GRANTED
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            assert link.is_closed()
            assert (await reply(store, write("two", key="lock:c"))).verdict is Verdict.GRANTED


async def test_whichever_connection_is_terminated_everything_goes_on(
    postgres: PostgresServer, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    mine = "datname = current_database() and pid <> pg_backend_pid()"
    async with PostgresProvider(postgres.url) as here, PostgresProvider(postgres.url) as there:
        near, far = Lock("a", backend=here), Lock("a", backend=there)
        for _ in range(2):
            for pid in [row[0] for row in await admin.fetch(f"select pid from pg_stat_activity where {mine}")]:
                guard = await near.acquire()
                waiting = asyncio.create_task(far.acquire(timeout=10))
                await until(admin, "select cardinality(seats) = 1 from grelmicro.lock where key = 'lock:a'")
                await admin.execute("select pg_terminate_backend($1)", pid)
                await insistently(guard.release)
                await insistently((await waiting).release)


@pytest.mark.parametrize("crash", [False, True], ids=["restart", "crash"])
async def test_a_server_that_comes_back_finds_us_again(crash: bool) -> None:
    def start_one() -> tuple[Any, PostgresServer]:
        context = running_postgres(fsync=True)
        return context, context.__enter__()

    context, server = await asyncio.to_thread(start_one)
    try:
        async with opened(PostgresProvider(server.url)) as store:
            ear: asyncio.Queue[Wake | None] = asyncio.Queue()
            listener = asyncio.create_task(store.listen(ear.put_nowait))
            assert await asyncio.wait_for(ear.get(), 10) is None
            first = await reply(store, write("one"))
            await asyncio.to_thread(server.stop, *([3] if crash else []))
            with pytest.raises(BackendError):
                await store.apply([release("one")])
            await asyncio.to_thread(server.start)
            assert await asyncio.wait_for(ear.get(), 10) is None
            assert (await reply(store, write("two"))).verdict is Verdict.HELD
            await reply(store, release("one"))
            assert (await reply(store, write("two"))).fence == first.fence + 1
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


async def test_a_server_that_is_down_at_the_start_is_used_when_it_comes(
    postgres: PostgresServer, admin: "asyncpg.Connection[asyncpg.Record]", caplog: pytest.LogCaptureFixture
) -> None:
    async with fault_proxy(postgres.port) as proxy:
        proxy.refuses = True
        url = postgres.url.replace(str(postgres.port), str(proxy.port))
        async with PostgresProvider(url) as provider:
            assert [record.levelno for record in caplog.records] == [logging.WARNING]
            lock = Lock("a", backend=provider)
            with pytest.raises(BackendError):
                await lock.acquire(timeout=0)
            proxy.heal()
            await (await lock.acquire(timeout=0)).release()


# Wakes


async def test_a_silent_connection_is_given_up_for_another_one(
    postgres: PostgresServer, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    async with fault_proxy(postgres.port) as proxy:
        url = postgres.url.replace(str(postgres.port), str(proxy.port))
        async with opened(PostgresProvider(postgres.url, listen_url=url)) as store:
            store._ear._ping = 0.1
            ear: asyncio.Queue[Wake | None] = asyncio.Queue()
            listener = asyncio.create_task(store.listen(ear.put_nowait))
            assert await asyncio.wait_for(ear.get(), 10) is None
            proxy.down.drop = True
            connections = proxy.connections
            async with asyncio.timeout(10):
                while True:
                    if proxy.connections > connections:
                        break
                    await asyncio.sleep(0.01)
            proxy.heal()
            proxy.cut()
            assert await asyncio.wait_for(ear.get(), 10) is None
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)


async def test_nobody_is_notified_while_nobody_waits(
    postgres: PostgresServer, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    async with opened(PostgresProvider(postgres.url)) as store:
        heard: list[object] = []

        def told(*said: object) -> None:
            heard.append(said[3])

        await admin.add_listener("grelmicro_other", told)
        await reply(store, write("one"))
        await reply(store, release("one"))
        await reply(store, write("one"))
        await reply(store, write("two", "other/w"))
        await reply(store, write("three", f"{store.channel}/w"))
        await reply(store, release("one"))
        await admin.execute("select 1")
        await admin.remove_listener("grelmicro_other", told)
        assert [json.loads(str(payload)) for payload in heard] == [["lock:a", "other/w", 0]]


async def test_a_pooler_that_swallows_listen_is_noticed_and_waiters_poll(
    postgres: PostgresServer,
    pgbouncer_url: str,
    admin: "asyncpg.Connection[asyncpg.Record]",
    caplog: pytest.LogCaptureFixture,
) -> None:
    polling = [PostgresProvider(pgbouncer_url, statement_cache_size=0) for _ in range(2)]
    async with opened(polling[0]) as store:
        with pytest.raises(BackendError, match="listen_url="):
            await store.listen(lambda wake: None)
    async with polling[0] as here, polling[1] as there:
        # While it is not known yet, they wait a third of a place.
        guard = await Lock("a", backend=here).acquire()
        waiting = asyncio.create_task(Lock("a", backend=there, retry_interval=0.01).acquire(timeout=10))
        await until(admin, "select cardinality(seats) = 1 from grelmicro.lock where key = 'lock:a'")
        await guard.release()
        await (await waiting).release()


async def test_a_pooler_that_loses_prepared_statements_is_noticed(
    pgbouncer_url: str,
    admin: "asyncpg.Connection[asyncpg.Record]",
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened(PostgresProvider(pgbouncer_url)) as one, opened(PostgresProvider(pgbouncer_url)) as two:
        for number in range(20):
            # Two lanes each, that find out at the same time.
            asks = [
                (store, write("one", key=f"lock:{name}:{number}"))
                for store, name in zip((one, one, two, two), "abcd", strict=True)
            ]
            await asyncio.gather(*[reply(store, ask) for store, ask in asks])
    assert all("statement_cache_size=0" in record.message for record in caplog.records)


if not find_pgbouncer():
    # Where no pooler is installed there is nothing to see.
    del test_a_pooler_that_swallows_listen_is_noticed_and_waiters_poll
    del test_a_pooler_that_loses_prepared_statements_is_noticed


# A pool of somebody else's


async def test_a_borrowed_pool_serves_five_hundred_and_stays_open(
    postgres: PostgresServer, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    async with asyncpg.create_pool(postgres.url, min_size=0, max_size=5) as pool:
        async with PostgresProvider.from_client(pool) as provider:
            lock = ReadWriteLock("a", backend=provider)
            order: list[int] = []

            async def work(number: int) -> None:
                async with lock.read if number % 2 else lock.write:
                    order.append(number)

            await asyncio.gather(*map(work, range(500)))
            assert len(order) == 500
        assert await pool.fetchval("select 1") == 1
        assert pool.get_idle_size() == pool.get_size()


async def test_a_pool_that_cannot_spare_a_connection_makes_waiters_poll(
    postgres: PostgresServer, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    async with (
        asyncpg.create_pool(postgres.url, min_size=0, max_size=1) as pool,
        opened(PostgresProvider.from_client(pool)) as store,
    ):
        with pytest.raises(BackendError, match="listen_url="):
            await store.listen(lambda wake: None)
        assert (await reply(store, write("one"))).verdict is Verdict.GRANTED
