"""What is peculiar to Redis and Valkey: how they lose, refuse and forget things, and that we come through it."""

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from signal import SIGCONT, SIGSTOP
from typing import Any

import pytest
import redis
from redis.asyncio import Redis as AsyncRedis

from grelmicro_fastapi.coordination.state import (
    CLAIM,
    Acquire,
    Command,
    Leave,
    Mode,
    Release,
    Renew,
    Reply,
    Undo,
    Verdict,
)
from grelmicro_fastapi.coordination.store import Answer, Ask, Wake
from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers import redis_ears
from grelmicro_fastapi.providers.redis import RedisProvider
from grelmicro_fastapi.providers.redis_line import Line
from grelmicro_fastapi.providers.redis_provider import RedisLikeProvider
from grelmicro_fastapi.providers.redis_site import Cluster as ClusterSite
from grelmicro_fastapi.providers.redis_site import OneServer, slot_of
from grelmicro_fastapi.providers.redis_store import RedisStore
from grelmicro_fastapi.providers.valkey import ValkeyProvider
from tests.faultproxy import fault_proxy
from tests.servers.redis import Cluster, Server, default_server, free_port, running, watched

pytestmark = pytest.mark.anyio
MINUTE = 60_000
both = pytest.mark.parametrize("kind", [RedisProvider, ValkeyProvider])


def write(token: str, seat: str = "", ttl: int = MINUTE) -> Acquire:
    return Acquire(token, Mode.WRITE, ttl, seat)


@asynccontextmanager
async def opened(provider: RedisLikeProvider) -> AsyncIterator[RedisStore]:
    store = provider._store()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def own_server(**options: str) -> Iterator[Server]:
    with running(default_server(), **options) as server:
        yield server


async def ask(store: RedisStore, command: Command, key: str = "lock:a") -> Reply:
    (answer,) = await store.apply([Ask(key, command, CLAIM)])
    if isinstance(answer, BackendError):
        raise answer
    return answer


async def granted(store: RedisStore, command: Command, key: str = "lock:a") -> Reply:
    reply = await ask(store, command, key)
    assert reply.verdict is Verdict.GRANTED, reply
    return reply


async def sooner_or_later(store: RedisStore, command: Command, key: str = "lock:a") -> Reply:
    """Asked until the servers have sorted themselves out."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await ask(store, command, key)
            except BackendError:
                await asyncio.sleep(0.02)  # they do so on their own clock


async def until(true: Callable[[], bool]) -> None:
    """Until a server has noticed."""
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)  # it does so on its own clock


class Ear:
    """A listener's ear, and the task that listens."""

    def __init__(self, store: RedisStore) -> None:
        self.heard: list[Wake | None] = []
        self._news = asyncio.Event()
        self.task = asyncio.create_task(store.listen(self._hear))

    def _hear(self, wake: Wake | None) -> None:
        self.heard.append(wake)
        self._news.set()

    async def hears(self, wake: Wake | None) -> None:
        async with asyncio.timeout(20):
            while wake not in self.heard:
                self._news.clear()
                await self._news.wait()
        self.heard.clear()

    async def __aenter__(self) -> "Ear":
        await self.hears(None)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


# Scripts ------------------------------------------------------------------------------------------------------------


@both
async def test_a_server_that_forgets_the_script_between_any_two_calls_is_told_again(
    kind: type[RedisLikeProvider], valkey_server: Server
) -> None:
    with valkey_server.client() as meddler:
        meddler.flushall()
        async with opened(kind(valkey_server.url)) as store:
            for number in range(1, 6):
                meddler.script_flush()
                asks = [Ask(f"lock:{name}", write(f"t{number}"), CLAIM) for name in "abc"]
                assert [reply.fence for reply in await store.apply(asks) if isinstance(reply, Reply)] == [number] * 3
                meddler.script_flush()
                await store.apply([Ask(f"lock:{name}", Release(f"t{number}"), CLAIM) for name in "abc"])


async def test_a_key_that_holds_something_else_is_an_error_that_says_so_and_is_left_alone(
    valkey_server: Server,
) -> None:
    with valkey_server.client() as meddler:
        meddler.flushall()
        meddler.set("lock:text", "precious")
        meddler.hset("lock:hash", mapping={"precious": "1"})
        async with opened(RedisProvider(valkey_server.url)) as store:
            asks = [Ask(f"lock:{name}", write("t"), CLAIM) for name in ("text", "free", "hash")]
            text, free, hash_ = await store.apply(asks)
            assert isinstance(free, Reply)
            for refused in (text, hash_):
                assert isinstance(refused, BackendError)
                assert "WRONGTYPE" in str(refused) or "wrong kind" in str(refused)
                assert not refused.sent
            assert await store.vacate() == await store.purge(0) == 0
            assert [key async for key in store.keys("")] == ["lock:free"]
        assert meddler.get("lock:text") == b"precious"
        assert meddler.hgetall("lock:hash") == {b"precious": b"1"}


async def test_a_batch_of_one_key_beyond_what_one_call_takes_is_answered_in_order(valkey_server: Server) -> None:
    with valkey_server.client() as meddler:
        meddler.flushall()
    async with opened(RedisProvider(valkey_server.url)) as store:
        readers = [Ask("rwlock:a", Acquire(f"t{number}", Mode.READ, MINUTE), CLAIM) for number in range(2_500)]
        answers = await store.apply(readers)
        assert all(isinstance(answer, Reply) and answer.verdict is Verdict.GRANTED for answer in answers)
        assert len((await store.peek("rwlock:a")).state.readers) == 2_500


async def test_readers_that_died_do_not_pile_up(valkey_server: Server) -> None:
    now = 1_796_074_665_000
    with valkey_server.client() as meddler:
        meddler.flushall()
        provider = RedisProvider(valkey_server.url)
        store = provider._store_on(provider._site(), lambda: now)
        await store.open()
        for round in range(50):
            reads = [Ask("rwlock:a", Acquire(f"{round}:{n}", Mode.READ, 100), CLAIM) for n in range(20)]
            await store.apply(reads)
            now += 50
        assert meddler.hlen("rwlock:a") < 60
        now += 100
        assert (await ask(store, write("w"), "rwlock:a")).verdict is Verdict.GRANTED
        await granted(store, Release("w"), "rwlock:a")
        assert set(meddler.hkeys("rwlock:a")) == {b"v", b"state"}
        await store.close()


# A server in trouble --------------------------------------------------------------------------------------------------


@both
async def test_a_server_that_restarts_is_found_again_and_everybody_is_woken(kind: type[RedisLikeProvider]) -> None:
    with own_server(appendonly="yes", appendfsync="always") as server:
        async with opened(kind(server.url)) as store, Ear(store) as ear:
            assert (await granted(store, write("one"))).fence == 1
            server.kill()
            with pytest.raises(BackendError):
                await ask(store, Renew("one", MINUTE))
            with pytest.raises(BackendError) as caught:
                await ask(store, Renew("one", MINUTE))
            assert not caught.value.sent
            server.start()
            await ear.hears(None)
            assert (await ask(store, write("two"))).verdict is Verdict.HELD
            await granted(store, Release("one"))
            assert (await granted(store, write("two"))).fence == 2


async def test_a_store_that_is_down_at_first_is_used_as_soon_as_it_is_up(caplog: pytest.LogCaptureFixture) -> None:
    with own_server() as server:
        server.kill()
        async with RedisProvider(server.url) as provider:
            assert [record.levelname for record in caplog.records] == ["WARNING"]
            with pytest.raises(BackendError):
                await provider.check()
            server.start()
            await provider.check()


async def test_a_server_that_hangs_is_given_up_in_time_and_used_again_when_it_answers() -> None:
    with own_server() as server:
        async with opened(RedisProvider(server.url, operation_timeout=0.2)) as store:
            await granted(store, write("one"))
            server.signal(SIGSTOP)
            try:
                with pytest.raises(BackendError) as caught:
                    await ask(store, write("lost"), "lock:b")
                assert caught.value.sent
            finally:
                server.signal(SIGCONT)
            # Whether it landed is unknown. Undone, nothing of it is left, and no answer goes to the wrong question.
            await sooner_or_later(store, Undo("lost"), "lock:b")
            assert (await granted(store, Renew("one", MINUTE))).fence == 1
            await granted(store, write("next"), "lock:b")


async def test_a_server_that_became_a_replica_grants_nothing_from_its_past() -> None:
    with own_server() as server, own_server() as other, other.client() as meddler:
        async with opened(RedisProvider(other.url)) as store, Ear(store) as ear:
            await granted(store, write("one"))
            meddler.replicaof("127.0.0.1", server.port)
            for command in (Renew("nobody", 1), Release("nobody"), write("two"), Leave("nobody/w")):
                with pytest.raises(BackendError) as caught:
                    await ask(store, command)
                assert not caught.value.sent
            # Who listens there looks for the one that took over.
            await ear.hears(None)
            meddler.replicaof("NO", "ONE")
            await granted(store, write("three"), "lock:b")


async def test_batches_that_follow_each_other_to_a_server_that_became_a_replica_are_all_refused_for_sure() -> None:
    answers: asyncio.Queue[Sequence[Answer] | BackendError] = asyncio.Queue()
    with own_server() as server, own_server() as other, other.client() as meddler:
        async with opened(RedisProvider(other.url)) as store:
            await granted(store, write("one"))
            meddler.replicaof("127.0.0.1", server.port)
            first = store.send([Ask("lock:b", write("two"), CLAIM)], answers.put_nowait)
            assert first
            second = first.follow([Ask("lock:c", write("three"), CLAIM)], answers.put_nowait)
            assert second
            for _ in range(2):
                async with asyncio.timeout(20):
                    refused = await answers.get()
                (problem,) = [refused] if isinstance(refused, BackendError) else refused
                # Nobody has to wonder whether it was done.
                assert isinstance(problem, BackendError)
                assert not problem.sent
            # Nothing follows on that connection any more, and the next one is a new one.
            assert second.follow([Ask("lock:d", write("four"), CLAIM)], answers.put_nowait) is None
            meddler.replicaof("NO", "ONE")
            await granted(store, write("five"), "lock:b")


@both
async def test_a_sentinels_failover_is_followed_without_losing_a_lock(kind: type[RedisLikeProvider]) -> None:
    with watched(default_server(), patience=500) as site:
        async with opened(kind(site.url, replicas=1)) as careful:
            assert (await granted(careful, write("one"))).fence == 1
        async with opened(kind(site.url)) as store, opened(kind(site.url)) as other, Ear(store) as ear:
            await asyncio.to_thread(site.fail_over)
            await sooner_or_later(store, Renew("one", MINUTE))
            assert (await ask(store, write("two", f"{store.channel}/w"))).verdict is Verdict.HELD
            await ear.hears(None)
            await sooner_or_later(other, Release("one"))
            await ear.hears(Wake("lock:a", f"{store.channel}/w", 0))
            assert (await granted(store, write("two", f"{store.channel}/w"))).fence == 2


async def test_with_replicas_what_no_replica_has_is_not_said_to_be_done(valkey_server: Server) -> None:
    async with opened(RedisProvider(valkey_server.url, replicas=1, operation_timeout=0.2)) as store:
        with pytest.raises(BackendError, match="replicas") as caught:
            await ask(store, write("one"), "lock:shy")
        # It may have landed: it will have to be undone.
        assert caught.value.sent


async def test_a_full_memory_refuses_a_grant_and_never_a_release() -> None:
    with own_server(maxmemory_policy="noeviction") as server, server.client() as meddler:
        async with opened(RedisProvider(server.url)) as store:
            await granted(store, write("one"))
            await granted(store, Acquire("reads", Mode.READ, MINUTE), "rwlock:b")
            await granted(store, write("cools"), "lock:c")
            meddler.config_set("maxmemory", 1)
            with pytest.raises(BackendError) as caught:
                await ask(store, write("new"), "lock:new")
            assert not caught.value.sent
            await granted(store, Renew("one", MINUTE))
            await granted(store, Release("one"))
            await granted(store, Release("reads"), "rwlock:b")
            await granted(store, Release("cools", min_hold=MINUTE), "lock:c")
            assert (await ask(store, Undo("nobody"), "lock:d")).verdict is Verdict.GONE
            assert (await store.peek("lock:c")).state.writer is not None


async def test_a_server_that_may_evict_locks_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with own_server(maxmemory_policy="allkeys-lru") as server:
        async with opened(RedisProvider(server.url)) as store:
            await granted(store, write("one"))
        assert [record.levelname for record in caplog.records if "allkeys" in record.message] == ["WARNING"]


# Permissions ----------------------------------------------------------------------------------------------------------


def _user(server: Server, *rules: str) -> str:
    with server.client() as meddler:
        meddler.execute_command("ACL", "SETUSER", "app", "reset", "on", ">p", *rules)
    return server.url.replace("//", "//app:p@")


RULES = ("+@all", "~lock:*", "~floor", "-@scripting", "+evalsha", "+eval")


async def test_it_works_with_the_permissions_that_the_docs_list() -> None:
    rules = ("-@all", "~lock:*", "~floor", "resetchannels", "&wake:*")
    rules += ("+eval", "+evalsha", "+time", "+hmget", "+hset", "+hdel", "+hgetall", "+exists", "+get", "+set", "+del")
    rules += ("+ping", "+scan", "+publish", "+subscribe")
    with own_server() as server:
        provider = RedisProvider(_user(server, *rules))
        async with opened(provider) as store, opened(provider) as other, Ear(store) as ear:
            await granted(other, write("one"))
            await ask(store, write("two", f"{store.channel}/w"))
            await granted(other, Release("one"))
            await ear.hears(Wake("lock:a", f"{store.channel}/w", 0))
            await granted(store, Leave(f"{store.channel}/w"))
            assert [key async for key in store.keys("lock:")] == ["lock:a"]


async def test_without_permission_to_subscribe_listening_is_refused_and_locks_work() -> None:
    with own_server() as server:
        async with opened(RedisProvider(_user(server, *RULES, "-subscribe"))) as store:
            with pytest.raises(BackendError, match="subscription"):
                await store.listen(lambda wake: None)
            await granted(store, write("one"))


async def test_without_permission_to_publish_a_release_is_done_and_waiters_poll() -> None:
    with own_server() as server:
        user = _user(server, *RULES, "allchannels", "-publish")
        async with opened(RedisProvider(user)) as store:
            listening = asyncio.create_task(store.listen(lambda wake: None))
            await asyncio.sleep(0)
            for number in range(1, 4):
                assert (await granted(store, write("one"))).fence == number
                await ask(store, write("two", "elsewhere/w"))
                await granted(store, Release("one"))
                await ask(store, Leave("elsewhere/w"))
            with pytest.raises(BackendError, match="publish"):
                await asyncio.wait_for(listening, 10)


async def test_a_cluster_that_lets_nobody_listen_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    port = str(free_port())
    with running(default_server(), cluster_enabled="yes", cluster_port=port) as server, server.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        async with opened(RedisProvider(f"redis+cluster://127.0.0.1:{server.port}")) as store:
            listening = asyncio.create_task(store.listen(lambda wake: None))
            await sooner_or_later(store, write("one", f"{store.channel}/w"))
            client.config_set("maxclients", 2)  # the connection for commands, and ours
            client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            await granted(store, write("one", f"{store.channel}/w"), "lock:b")
            monkeypatch.setattr(redis_ears, "_PATIENCE", 3600)
            try:
                async with asyncio.timeout(20):
                    await granted(store, write("one", f"{store.channel}/w"), "lock:b")
                    await granted(store, write("one", f"{store.channel}/w"), "lock:c")
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)


async def test_a_wrong_password_is_a_backend_error_that_does_not_hold_it() -> None:
    with own_server(requirepass="right") as server:
        with pytest.raises(BackendError) as caught:
            async with opened(RedisProvider(server.url.replace("//", "//:wrong@"))):
                pass
        assert "wrong@" not in str(caught.value)
        assert ":wrong" not in str(caught.value)
        async with opened(RedisProvider(server.url, password="right")) as store:
            await granted(store, write("one"))


async def test_a_unix_socket_will_do(valkey_server: Server) -> None:
    for kind in (RedisProvider, ValkeyProvider):
        async with opened(kind(f"unix://{valkey_server.socket}?db=3")) as store:
            await granted(store, write(kind.name), f"lock:{kind.name}")
    with valkey_server.client(db=3) as meddler:
        assert sorted(meddler.keys("lock:*")) == [b"lock:redis", b"lock:valkey"]


# Connections ----------------------------------------------------------------------------------------------------------


async def test_a_cancelled_call_never_leaves_its_answer_to_the_next(valkey_server: Server) -> None:
    async with opened(RedisProvider(valkey_server.url)) as store:
        for number in range(300):
            call = asyncio.create_task(store.apply([Ask(f"lock:{number}", write("cancelled"), CLAIM)]))
            for _ in range(number % 7):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            # Had the answer of the cancelled call been read here, the fence would be another.
            assert (await granted(store, write(f"t{number}"), "lock:same")).fence > number
            await granted(store, Release(f"t{number}"), "lock:same")


async def test_nothing_stays_on_the_server_when_a_provider_is_closed() -> None:
    with own_server() as server, server.client() as meddler:
        before = len(meddler.client_list())
        async with RedisProvider(server.url) as one, ValkeyProvider(server.url) as two:
            await one.check()
            await two.check()
        await until(lambda: len(meddler.client_list()) == before)
        assert meddler.pubsub_channels() == []


async def test_a_borrowed_client_is_neither_used_nor_closed(valkey_server: Server) -> None:
    client = AsyncRedis(port=valkey_server.port, decode_responses=True)
    try:
        async with RedisProvider.from_client(client, prefix="borrowed:") as provider:
            await provider.check()
        assert await client.ping()
    finally:
        await client.aclose()


def test_one_provider_serves_one_loop_after_another(valkey_server: Server) -> None:
    provider = RedisProvider(valkey_server.url)

    async def use() -> None:
        async with provider:
            await provider.check()

    asyncio.run(use())
    asyncio.run(use())


async def test_a_line_that_has_gone_dead_is_noticed(valkey_server: Server) -> None:
    async with fault_proxy(valkey_server.port) as proxy:
        site = RedisProvider(f"redis://127.0.0.1:{proxy.port}", connect_timeout=0.2)._site()
        assert isinstance(site, OneServer)
        heard: asyncio.Queue[str] = asyncio.Queue()
        async with Line(site.node, lambda kind, *_: heard.put_nowait(kind), quiet=0.02) as line:
            line.say("SUBSCRIBE", "x")
            staying = asyncio.ensure_future(line.stay())
            assert await heard.get() == "subscribe"
            # Quiet is not dead.
            await asyncio.wait([staying], timeout=0.5)
            assert not staying.done()
            proxy.down.drop = True
            with pytest.raises(BackendError):
                await staying


async def test_who_listens_hears_again_after_the_line_was_cut(valkey_server: Server) -> None:
    async with fault_proxy(valkey_server.port) as proxy:
        cut = RedisProvider(f"redis://127.0.0.1:{proxy.port}")
        async with opened(cut) as store, opened(RedisProvider(valkey_server.url)) as other, Ear(store) as ear:
            for token in "abc":
                proxy.cut()
                await ear.hears(None)
                await granted(other, write(token), "lock:cut")
                await ask(store, write("waits", f"{store.channel}/w"), "lock:cut")
                await granted(other, Release(token), "lock:cut")
                await ear.hears(Wake("lock:cut", f"{store.channel}/w", 0))
                await granted(store, Leave(f"{store.channel}/w"), "lock:cut")


def test_a_missing_driver_says_what_to_install() -> None:
    for library in ("redis", "valkey"):
        code = f"import sys; sys.modules['{library}'] = None; import grelmicro_fastapi.providers.{library}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert f"pip install grelmicro-fastapi[{library}]" in done.stderr


# Clusters -------------------------------------------------------------------------------------------------------------


def test_names_with_braces_lie_in_the_slot_that_the_cluster_says(cluster: Cluster) -> None:
    names = ["a", "{a}b", "a{b}", "{}a", "{a", "a}b{c}", "lock:{x}{y}", "ü{ö}", "{{a}}", ""]
    with cluster.nodes[0].client() as client:
        assert [slot_of(name) for name in names] == [
            client.execute_command("CLUSTER", "KEYSLOT", name) for name in names
        ]


async def test_every_server_of_a_cluster_may_forget_the_script(cluster: Cluster) -> None:
    cluster.flush()
    async with opened(RedisProvider(cluster.url)) as store:
        for number in range(1, 4):
            for node in cluster.nodes[:3]:
                with node.client() as meddler:
                    meddler.script_flush()
            answers = await store.apply([Ask(f"lock:{name}", write(f"t{number}"), CLAIM) for name in range(30)])
            assert {answer.fence for answer in answers if isinstance(answer, Reply)} == {number}
            await store.apply([Ask(f"lock:{name}", Release(f"t{number}"), CLAIM) for name in range(30)])


async def test_a_clusters_url_may_name_a_server_that_is_gone(cluster: Cluster) -> None:
    with own_server() as gone:
        gone.kill()
        url = f"redis+cluster://127.0.0.1:{gone.port},127.0.0.1:{cluster.nodes[1].port}"
        async with opened(RedisProvider(url)) as store:
            await granted(store, write("one"), "lock:somewhere")


@both
async def test_locks_stay_available_while_their_slot_moves_and_wakes_follow(
    kind: type[RedisLikeProvider], cluster: Cluster
) -> None:
    cluster.flush()
    slot = slot_of("lock:{m}")
    source = cluster.owner(slot)
    target = next(node for node in cluster.nodes[:3] if node is not source)

    def move(*nodes_and_states: Any) -> None:
        for node, *state in nodes_and_states:
            with node.client() as client:
                client.execute_command("CLUSTER", "SETSLOT", slot, *state)

    async with opened(kind(cluster.url)) as store, opened(kind(cluster.url)) as other, Ear(store) as ear:
        await granted(other, write("moved"), "lock:{m}moved")
        await granted(other, write("stays"), "lock:{m}stays")
        await ask(store, write("waits", f"{store.channel}/w"), "lock:{m}stays")
        await ear.hears(None)
        move(
            (target, "IMPORTING", cluster.id_of(source)),
            (source, "MIGRATING", cluster.id_of(target)),
        )
        with source.client() as client:
            client.migrate("127.0.0.1", target.port, ["lock:{m}moved"], 0, 5_000)
        # One is there already, one is still here, one is new, and they travel together.
        asks = [Ask(f"lock:{{m}}{name}", Renew(name, MINUTE), CLAIM) for name in ("moved", "stays")]
        answers = await store.apply([*asks, Ask("lock:{m}new", write("new"), CLAIM)])
        assert [answer.verdict for answer in answers if isinstance(answer, Reply)] == [Verdict.GRANTED] * 3
        with source.client() as client:
            client.migrate("127.0.0.1", target.port, ["lock:{m}stays"], 0, 5_000)
        move(*((node, "NODE", cluster.id_of(target)) for node in (target, source)))
        # The place in the queue moved along, and so did the ear.
        await ear.hears(None)
        assert (await ask(store, write("waits", f"{store.channel}/w"), "lock:{m}stays")).seated
        await granted(other, Release("stays"), "lock:{m}stays")
        await ear.hears(Wake("lock:{m}stays", f"{store.channel}/w", 0))
        assert (await granted(store, write("waits", f"{store.channel}/w"), "lock:{m}stays")).fence == 2
        assert (await sooner_or_later(other, write("again"), "lock:{m}new")).verdict is Verdict.HELD


async def test_one_line_to_each_server_hears_every_slot_and_none_is_left(cluster: Cluster) -> None:
    cluster.flush()
    provider = RedisProvider(cluster.url)
    async with opened(provider) as store, opened(RedisProvider(cluster.url)) as other:
        async with Ear(store) as ear:
            keys = [f"lock:{number}" for number in range(40)]
            await other.apply([Ask(key, write("held"), CLAIM) for key in keys])
            await store.apply([Ask(key, write(key, f"{store.channel}/w"), CLAIM) for key in keys])
            await other.apply([Ask(key, Release("held"), CLAIM) for key in keys])
            wakes = {Wake(key, f"{store.channel}/w", 0) for key in keys}
            await until(lambda: wakes <= {*ear.heard})
            listeners = 0
            for node in cluster.nodes[:3]:
                with node.client() as client:
                    listeners += len(client.client_list(_type="pubsub"))
            assert listeners <= 3
        await until(lambda: not any(_shard_channels(node) for node in cluster.nodes[:3]))


def _shard_channels(server: Server) -> list[Any]:
    with server.client() as client:
        channels: list[Any] = client.execute_command("PUBSUB", "SHARDCHANNELS")
        return channels


def test_a_cluster_site_is_made_of_a_client_of_a_cluster_too(cluster: Cluster) -> None:
    async def use() -> None:
        client = redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster.nodes[0].port, decode_responses=True)
        try:
            async with opened(RedisProvider.from_client(client, prefix="borrowed:")) as store:
                assert isinstance(store._site, ClusterSite)
                await granted(store, write("one"))
            assert await client.ping()
        finally:
            await client.aclose()

    asyncio.run(use())


def test_the_log_of_a_whole_life_holds_no_token(valkey_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async def use() -> None:
        async with opened(RedisProvider(valkey_server.url)) as store:
            await granted(store, write("TOKEN"), "lock:secret")
            with valkey_server.client() as meddler:
                meddler.set("lock:secret2", "x")
            with pytest.raises(BackendError) as caught:
                await ask(store, write("TOKEN"), "lock:secret2")
            assert "TOKEN" not in str(caught.value)

    with caplog.at_level(logging.DEBUG):
        asyncio.run(use())
    assert "TOKEN" not in caplog.text
