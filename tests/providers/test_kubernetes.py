"""What is peculiar to Leases: names, calls, ends without clocks, what others see and change."""

import copy
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import certifi
import pytest
from aiohttp import web
from kubernetes_asyncio.client import ApiClient, Configuration

from grelmicro_fastapi.coordination.lock import Lock
from grelmicro_fastapi.coordination.state import (
    CLAIM,
    Advance,
    Force,
    Poison,
    Release,
    Renew,
    Reply,
    State,
    Undo,
    Verdict,
    Writer,
)
from grelmicro_fastapi.coordination.store import Ask, Scope
from grelmicro_fastapi.errors import BackendError, SettingsValidationError
from grelmicro_fastapi.providers.kubernetes import KubernetesProvider
from grelmicro_fastapi.providers.kubernetes_line import Line
from grelmicro_fastapi.providers.kubernetes_names import DROPPED, RECORD, Names
from grelmicro_fastapi.providers.kubernetes_names import KEY as KEY_ANNOTATION
from grelmicro_fastapi.providers.kubernetes_record import blank, load, save
from grelmicro_fastapi.providers.kubernetes_sights import Sight
from grelmicro_fastapi.providers.urls import provider_from_url
from grelmicro_fastapi.testing.clock import ManualClock
from tests.providers.leases import KEY, LEASE, Site, a_site, answer, ask, calls, listening, poke, read, write
from tests.servers.kubernetes import Apply, Cluster, LeaseServer
from tests.servers.kubernetes_probe import Probe

pytestmark = pytest.mark.anyio

ANSWERS = Path(__file__).parents[1] / "servers" / "kubernetes_answers.txt"
HOUR = 3600


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with a_site(tmp_path) as site:
        yield site


async def test_the_stand_in_answers_as_a_real_server_did() -> None:
    headers = {"Authorization": "Bearer right"}
    async with LeaseServer("right") as server, aiohttp.ClientSession(headers=headers) as session:
        probe = Probe(session, f"{server.url}/apis/coordination.k8s.io/v1/namespaces/default/leases")
        told = [answer.line() async for answer in probe.answers()]
    recorded = ANSWERS.read_text().splitlines()
    assert len(recorded) == 81
    assert told == recorded


# Calls.


async def test_a_name_that_is_new_costs_two_calls_and_afterwards_everything_costs_one(site: Site) -> None:
    store, server = await site.store(), site.server
    start = len(server.calls)
    assert (await ask(store, write("one"))).fence == 1
    assert calls(server, start) == ["GET", "POST"]
    await site.clock.advance(1)
    for command in (Renew("one", LEASE), Release("one"), write("two"), Renew("two", 2 * LEASE), Release("two")):
        start = len(server.calls)
        assert (await ask(store, command)).verdict is Verdict.GRANTED
        assert calls(server, start) == ["PUT"], command


async def test_a_name_that_this_process_has_not_seen_costs_two_calls(site: Site) -> None:
    one, two = await site.store(), await site.store()
    await ask(one, write("one"))
    await ask(one, Release("one"))
    start = len(site.server.calls)
    assert (await ask(two, write("two"))).fence == 2
    assert calls(site.server, start) == ["GET", "PUT"]
    # The version that the first one knows is out of date now, and that is found out by writing.
    assert (await ask(one, write("one more"))).verdict is Verdict.HELD
    assert (await ask(two, Release("two"))).verdict is Verdict.GRANTED


async def test_a_refusal_that_changes_nothing_writes_nothing_and_is_never_made_from_memory(site: Site) -> None:
    one, two = await site.store(), await site.store()
    await ask(one, write("one"))
    assert (await ask(two, write("two"))).verdict is Verdict.HELD
    start = len(site.server.calls)
    assert (await ask(two, write("two"))).verdict is Verdict.HELD
    assert calls(site.server, start) == ["GET"]
    await ask(one, Release("one"))
    assert (await ask(two, write("two"))).verdict is Verdict.GRANTED


async def test_many_commands_for_one_key_are_one_write(site: Site) -> None:
    store = await site.store()
    await ask(store, read("first"))
    start = len(site.server.calls)
    assert len(await store.apply([Ask(KEY, read(f"r{number}"), CLAIM) for number in range(50)])) == 50
    assert calls(site.server, start) == ["PUT"]
    assert len((await store.peek(KEY)).state.readers) == 51


# Names.


async def test_names_that_look_alike_never_meet(site: Site) -> None:
    names = ["users:42", "users-42", "USERS.42", "users_42", "a:b", "a-b", "A_B", "a--b", "x" * 200, "x" * 199 + "y"]
    names += ["日本", "日本語", "-", "."]
    store = await site.store()
    for name in names:
        assert (await ask(store, write(name), f"lock:{name}")).verdict is Verdict.GRANTED, name
    assert len(site.server.leases.kept) == len(names)
    for key, lease in site.server.leases.kept.items():
        assert re.fullmatch(r"[a-z0-9][-a-z0-9]{0,72}", key[1])
        assert lease["metadata"]["annotations"][KEY_ANNOTATION].removeprefix("lock:") in names


async def test_prefixes_keep_applications_apart(site: Site) -> None:
    shop, blog, bare = await site.store(prefix="shop:"), await site.store(prefix="blog:"), await site.store()
    stores = {"shop:": shop, "blog:": blog, "": bare}
    for prefix, store in stores.items():
        assert (await ask(store, write(f"of {prefix}", ttl=1_000))).verdict is Verdict.GRANTED
    # Without a prefix, the same text as the other's with one.
    assert (await ask(bare, write("other"), "shop:lock:x")).verdict is Verdict.GRANTED
    assert [key async for key in shop.keys("")] == [KEY]
    assert sorted([key async for key in bare.keys("")]) == [KEY, "shop:lock:x"]
    await site.clock.advance(1)
    assert await shop.vacate() == 1
    assert await blog.vacate() == 1
    assert site.lease(prefix="blog:")["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "grelmicro"


async def test_a_lease_that_belongs_to_somebody_else_is_left_alone(site: Site) -> None:
    store = await site.store()
    body = {"metadata": {"name": Names("").lease(KEY)}, "spec": {"holderIdentity": "theirs"}}
    theirs = site.server.leases.create("default", body)
    refused = await answer(store, write("one"))
    assert isinstance(refused, BackendError)
    assert not refused.sent
    assert "not made for it" in str(refused)
    assert site.lease() == theirs
    assert [key async for key in store.keys("")] == []
    assert await store.vacate() == 0


# What is in a Lease.


async def test_kubectl_shows_who_holds_and_until_when_but_no_secret(site: Site) -> None:
    async with site.provider() as provider:
        lock = Lock("x", backend=provider, worker="web-1", lease_duration=2.5)
        async with lock:
            lease = site.lease()
            (token,) = [site.record()["writer"]["token"]]
            spec = lease["spec"]
            assert (spec["holderIdentity"], spec["leaseTransitions"], spec["leaseDurationSeconds"]) == ("web-1", 1, 3)
            assert spec["acquireTime"] == spec["renewTime"] == "2027-01-15T08:00:00.000000Z"
            assert token not in json.dumps(spec)
            assert token.rpartition(":")[2] not in json.dumps(spec)
        assert site.lease()["spec"]["holderIdentity"] == ""
        assert site.lease()["spec"]["leaseTransitions"] == 1


async def test_what_others_write_into_a_lease_is_carried_through(site: Site) -> None:
    store = await site.store()
    await ask(store, write("one"))
    lease = site.lease()
    lease["metadata"]["annotations"]["example.com/note"] = "ours"
    lease["metadata"]["labels"]["team"] = "a"
    site.put(lease)
    assert (await ask(store, Renew("one", 2 * LEASE))).verdict is Verdict.GRANTED
    assert (await ask(store, Release("one"))).verdict is Verdict.GRANTED
    meta = site.lease()["metadata"]
    assert meta["annotations"]["example.com/note"] == "ours"
    assert meta["labels"]["team"] == "a"


def test_fields_of_newer_servers_are_carried_through() -> None:
    lease = {"metadata": {"name": "n", "x": 1, "annotations": {"a": "b"}}, "spec": {"strategy": "S", "y": [2]}, "z": {}}
    state, seen = load(KEY, lease, {}, 0)
    saved, _ = save(KEY, lease, state, seen, 0, "stamp", 0.0)
    assert saved["metadata"]["x"] == 1
    assert saved["metadata"]["annotations"]["a"] == "b"
    assert saved["spec"]["strategy"] == "S"
    assert saved["spec"]["y"] == [2]
    assert saved["z"] == {}
    assert RECORD not in lease["metadata"]["annotations"]


async def test_a_fence_does_not_go_round(site: Site) -> None:
    store = await site.store()
    await ask(store, write("one"))
    await ask(store, Release("one"))
    lease = site.lease()
    lease["spec"]["leaseTransitions"] = 2**31 - 2
    site.put(lease)
    assert (await ask(store, write("last"))).fence == 2**31 - 1
    await ask(store, Release("last"))
    before = site.lease()
    refused = await answer(store, write("one too many"))
    assert isinstance(refused, BackendError)
    assert not refused.sent
    assert "fence" in str(refused)
    assert site.lease() == before
    assert (await ask(store, read("reads"))).fence == 2**31 - 1


async def test_a_tick_is_an_instant_and_needs_more_room_than_transitions_have(site: Site) -> None:
    one, two = await site.store(), await site.store()
    now = (await one.peek("tick:sweep")).now
    assert (await ask(one, Advance("one", now), "tick:sweep")).verdict is Verdict.GRANTED
    assert (await ask(two, Advance("two", now), "tick:sweep")).verdict is Verdict.LATE
    assert (await two.peek("tick:sweep")).state.fence == now
    assert "leaseTransitions" not in site.lease("tick:sweep")["spec"]


async def test_a_damaged_record_concerns_its_own_name_only(site: Site) -> None:
    store = await site.store()
    for key in (KEY, "lock:y"):
        await ask(store, write("one"), key)
    lease = site.lease()
    for text in ("", "[]", "{", '{"v":1}', '{"v":1,"touched":0,"writer":3}'):
        lease["metadata"]["annotations"][RECORD] = text
        site.put(lease)
        lease = site.lease()
        refused = await answer(store, Release("one"))
        assert isinstance(refused, BackendError)
        assert "damaged" in str(refused)
        assert site.lease() == lease
    assert (await ask(store, Release("one"), "lock:y")).verdict is Verdict.GRANTED
    assert await store.vacate() == 0


async def test_more_holders_than_a_lease_takes_are_refused_and_those_in_it_can_leave(site: Site) -> None:
    store = await site.store()
    groups = [[f"{number}:{'x' * 900}" for number in range(start, start + 30)] for start in range(0, 300, 30)]
    inside: list[str] = []
    for group in groups:
        answers = await store.apply([Ask(KEY, read(token), CLAIM) for token in group])
        if isinstance(refused := answers[0], BackendError):
            break
        inside += group
    assert 200 < len(inside) < 300
    assert isinstance(refused, BackendError)
    assert "more holders" in str(refused)
    assert not refused.sent
    left = await store.apply([Ask(KEY, Release(token), CLAIM) for token in inside])
    assert {answer.verdict for answer in left if isinstance(answer, Reply)} == {Verdict.GRANTED}


# Ends, without clocks that agree.


async def test_a_lease_ends_when_its_beat_was_seen_unchanged_for_as_long(site: Site) -> None:
    here, there = ManualClock(now=5, wall=1_000_000), ManualClock(now=90_000, wall=1_800_000_000)
    holder, other = await site.store(clock=here), await site.store(clock=there)
    await ask(holder, write("one"))
    assert (await ask(other, write("two"))).verdict is Verdict.HELD
    for _ in range(5):
        for clock in (here, there):
            await clock.advance(LEASE / 1000 - 0.001)
        assert (await ask(holder, Renew("one", LEASE))).verdict is Verdict.GRANTED
        assert (await ask(other, write("two"))).verdict is Verdict.HELD
    await there.advance(LEASE / 1000 - 0.001)
    assert (await ask(other, write("two"))).verdict is Verdict.HELD
    await there.advance(0.001)
    reply = await ask(other, write("two"))
    assert (reply.verdict, reply.fence, reply.poisoned) == (Verdict.GRANTED, 2, True)
    assert (await ask(holder, Renew("one", LEASE))).verdict is Verdict.GONE


async def test_a_wall_clock_that_jumps_an_hour_changes_nothing(site: Site) -> None:
    here, there = ManualClock(), ManualClock()
    holder, other = await site.store(clock=here), await site.store(clock=there)
    await ask(holder, write("one"))
    assert (await ask(other, write("two"))).verdict is Verdict.HELD
    for jump in (HOUR, -2 * HOUR):
        here.step_wall(jump)
        there.step_wall(-jump)
        assert (await ask(other, write("two"))).verdict is Verdict.HELD
        assert (await ask(holder, Renew("one", LEASE))).verdict is Verdict.GRANTED
        await there.advance(1)
        late = await site.store(clock=ManualClock(wall=1_800_000_000 + jump))
        assert (await ask(late, write("three"))).verdict is Verdict.HELD
    assert (await ask(holder, Release("one"))).verdict is Verdict.GRANTED


async def test_an_observer_that_has_just_started_waits_what_the_last_writer_left_and_no_less(site: Site) -> None:
    here, there = ManualClock(), ManualClock(now=7)
    holder = await site.store(clock=here)
    await ask(holder, write("dies"))
    await here.advance(4)
    # A write by one who knows tells the others how much is left.
    await ask(holder, write("waits", f"{holder.channel}/w"))
    fresh = await site.store(clock=there)
    assert (await ask(fresh, write("two"))).retry == 6_000
    await there.advance(5.999)
    assert (await ask(fresh, write("two"))).verdict is Verdict.HELD
    await there.advance(0.001)
    reply = await ask(fresh, write("two"))
    assert (reply.verdict, reply.fence, reply.poisoned) == (Verdict.GRANTED, 2, True)


async def test_a_lease_counts_as_seen_when_its_answer_is_here_not_when_it_was_asked_for(site: Site) -> None:
    holder, other = await site.store(), await site.store(clock=(there := ManualClock()))
    await ask(holder, write("one"))

    async def slow(request: web.Request, apply: Apply) -> web.StreamResponse:
        there.jump(3)
        return await apply()

    site.server.misbehave(slow, "GET")
    assert (await ask(other, write("two"))).retry == LEASE


async def test_whoever_writes_without_knowing_better_does_not_make_the_dead_live_longer_for_those_who_do(
    site: Site,
) -> None:
    here, there = ManualClock(), ManualClock(now=7)
    holder, knows = await site.store(clock=here), await site.store(clock=here)
    await ask(holder, write("dies"))
    assert (await ask(knows, write("two"))).retry == LEASE
    await here.advance(8)
    fresh = await site.store(clock=there)
    assert (await ask(fresh, write("three", f"{fresh.channel}/w"))).retry == LEASE
    assert (await ask(knows, write("two"))).retry == 2_000
    await here.advance(2)
    assert await knows.vacate() == 1
    assert (await fresh.peek(KEY)).state.poisoned


async def test_a_lease_seen_by_the_watch_ends_as_if_it_had_been_asked_for(site: Site) -> None:
    here, there = ManualClock(), ManualClock(now=7)
    holder, watcher = await site.store(clock=here), await site.store(clock=there)
    async with listening(watcher) as ear:
        await ask(holder, write("dies"))
        # One Lease's change that must be heard, after which the one before it has been.
        await poke(holder, watcher, ear)
    await there.advance(LEASE / 1000)
    start = len(site.server.calls)
    reply = await ask(watcher, write("two"))
    assert (reply.verdict, reply.poisoned) == (Verdict.GRANTED, True)
    assert calls(site.server, start) == ["PUT"]


async def test_a_grave_outlives_the_process_that_dug_it(site: Site) -> None:
    one, two = await site.store(), await site.store()
    assert (await ask(one, Undo("late"))).verdict is Verdict.GONE
    assert (await ask(two, write("late"))).verdict is Verdict.BURIED


# What becomes of Leases that go.


async def test_a_lease_that_somebody_deletes_is_made_anew_above_its_fence(site: Site) -> None:
    one, two = await site.store(), await site.store()
    for token in "abc":
        await ask(one, write(token))
        await ask(one, Release(token))
    await ask(one, write("held"))
    site.server.leases.delete(("default", Names("").lease(KEY)), {})
    assert (await ask(one, Renew("held", LEASE))).verdict is Verdict.GONE
    assert (await ask(one, write("next"))).fence == 5
    # Deleted and made anew by one who knew nothing of it: who did know does not go back.
    await ask(one, Release("next"))
    site.server.leases.delete(("default", Names("").lease(KEY)), {})
    assert (await ask(two, write("new"))).fence == 1
    assert (await ask(two, Release("new"))).verdict is Verdict.GRANTED
    assert (await ask(one, write("after"))).fence == 6


async def test_a_purged_name_leaves_its_fence_for_a_day_and_the_floor_for_ever(site: Site) -> None:
    store = await site.store()
    for token in "abc":
        await ask(store, write(token))
        await ask(store, Release(token))
    await site.clock.advance(2)
    assert await store.purge(1) == 1
    assert [key async for key in store.keys("")] == []
    annotations = site.lease()["metadata"]["annotations"]
    assert RECORD not in annotations
    assert DROPPED in annotations
    await site.clock.advance(24 * HOUR - 3)
    assert await store.purge(1) == 0
    assert site.lease()["spec"]["leaseTransitions"] == 3
    await site.clock.advance(3)
    assert await store.purge(1) == 0
    assert list(site.server.leases.kept) == [("default", Names("").floor)]
    other = await site.store()
    assert (await ask(other, write("back"))).fence == 4


async def test_a_purged_name_that_comes_back_goes_on_where_it_was(site: Site) -> None:
    store, other = await site.store(), await site.store()
    await ask(store, write("one"))
    await ask(store, Release("one"))
    await site.clock.advance(2)
    assert await store.purge(1) == 1
    assert (await ask(other, write("two"))).fence == 2
    assert DROPPED not in site.lease()["metadata"]["annotations"]
    assert (await ask(store, write("three"))).verdict is Verdict.HELD


def test_what_was_seen_of_a_lease_is_not_believed_of_the_next_one_of_its_name() -> None:
    names, sight = Names(""), Sight(KEY)
    state = State(1, writer=Writer("one", 0, LEASE))
    lease, _ = save(KEY, blank(names.lease(KEY), names.labels, KEY), state, {}, 0, "stamp", 0.0)
    for uid, now in (("a", 0), ("a", 4_000), ("b", 8_000)):
        lease["metadata"] |= {"uid": uid, "resourceVersion": "1"}
        sight.saw(copy.deepcopy(lease), now)
        writer = sight.state(now).writer
        assert writer is not None
        assert writer.until == LEASE + (8_000 if uid == "b" else 0)


async def test_a_name_that_is_used_meanwhile_is_not_purged(site: Site) -> None:
    store, other = await site.store(), await site.store()
    await ask(store, write("one"))
    await ask(store, Release("one"))
    await site.clock.advance(2)

    async def used(request: web.Request, apply: Apply) -> web.StreamResponse:
        await ask(other, write("came back"))
        return await apply()

    # The floor is created, so the first PUT is the one that drops the name.
    site.server.misbehave(used, "PUT")
    assert await store.purge(1) == 0
    assert (await store.peek(KEY)).state.writer is not None


async def test_vacate_keeps_readers_poison_and_transitions(site: Site) -> None:
    store = await site.store()
    await ask(store, write("one"))
    await ask(store, Release("one", poison=Poison.SET))
    await ask(store, read("dies", ttl=1_000))
    await ask(store, read("lives"))
    await site.clock.advance(1)
    assert await store.vacate() == 1
    state = (await store.peek(KEY)).state
    assert list(state.readers) == ["lives"]
    assert state.poisoned
    assert site.lease()["spec"]["leaseTransitions"] == 1
    assert (await ask(store, Force())).verdict is Verdict.GRANTED


# The provider.


def test_a_provider_says_what_it_wants() -> None:
    assert KubernetesProvider.scope is Scope.CLUSTER
    for wrong in ({"namespace": "No"}, {"namespace": ""}, {"timeout": 0}, {"prefix": "a\n"}, {"prefix": "x" * 201}):
        with pytest.raises(SettingsValidationError):
            KubernetesProvider(**wrong)  # type: ignore[arg-type] # that is the point


def test_the_namespace_comes_from_the_environment_if_nobody_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBE_NAMESPACE", "shop")
    assert KubernetesProvider().namespace == "shop"
    assert KubernetesProvider("blog").namespace == "blog"
    monkeypatch.setenv("KUBE_NAMESPACE", "Not One")
    with pytest.raises(SettingsValidationError, match="KUBE_NAMESPACE") as refused:
        KubernetesProvider()
    assert "Not One" not in str(refused.value)


async def test_a_url_says_everything(kubernetes: Cluster) -> None:
    provider = provider_from_url(f"kubernetes://{kubernetes.namespace}?prefix=url:&kubeconfig={kubernetes.kubeconfig}")
    assert isinstance(provider, KubernetesProvider)
    assert (provider.namespace, provider.prefix) == (kubernetes.namespace, "url:")
    async with provider:
        await provider.check()
        async with Lock("x", backend=provider) as handle:
            assert handle.fencing_token > 0
    for wrong in ("kubernetes://a/b", "kubernetes://a?c=d", "kubernetes://A_B"):
        with pytest.raises(SettingsValidationError):
            provider_from_url(wrong)


async def test_nothing_that_says_where_stops_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    for provider in (KubernetesProvider(), KubernetesProvider(kubeconfig=str(tmp_path / "gone"))):
        with pytest.raises(SettingsValidationError, match="KUBECONFIG"):
            await provider.open()


async def test_a_borrowed_client_is_used_and_not_closed(site: Site) -> None:
    client = ApiClient(Configuration(host=site.server.url))
    provider = KubernetesProvider.from_client(client, "default", prefix="lent:")
    async with provider, Lock("x", backend=provider):
        assert site.lease(prefix="lent:")
    assert not client.rest_client.pool_manager.closed
    await client.close()


async def test_in_a_pod_the_service_account_is_used_and_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    (tmp_path / "ca.crt").symlink_to(certifi.where())
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "namespace").write_text("shop\n")
    line = Line(None, None, None, account=tmp_path)
    await line.open()
    assert line.namespace == "shop"
    assert (await line._settings.get_api_key_with_prefix("BearerToken")).strip() == "Bearer first"
    (tmp_path / "token").write_text("second\n")
    await line.introduce()
    assert (await line._settings.get_api_key_with_prefix("BearerToken")).strip() == "Bearer second"
    await line.close()
