"""API servers that are slow, busy, broken or gone, and writes of which nobody knows what became of them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from grelmicro_fastapi.coordination import LeaderElection
from grelmicro_fastapi.coordination.state import Downgrade, Release, Renew, Undo, Verdict
from grelmicro_fastapi.coordination.store import Store
from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers import kubernetes_api, kubernetes_ledger, kubernetes_watch
from grelmicro_fastapi.providers.kubernetes import KubernetesProvider
from grelmicro_fastapi.testing.clock import ManualClock
from tests.providers.leases import KEY, LEASE, Site, a_site, answer, ask, calls, listening, poke, read, write
from tests.servers.kubernetes import Apply, Fault, Late, apply_and_lose, kubeconfig, lose, says

pytestmark = pytest.mark.anyio

PAGE = "<html><body><h1>502 Bad Gateway</h1></body></html>"
GRANTED = Verdict.GRANTED


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with a_site(tmp_path) as site:
        yield site


async def failure(store: Store, *args: object) -> BackendError:
    found = await answer(store, write("one"))
    assert isinstance(found, BackendError), found
    return found


async def apply_and_say_504(request: web.Request, apply: Apply) -> web.StreamResponse:
    await apply()
    return web.json_response({"kind": "Status", "reason": "Timeout", "code": 504}, status=504)


# Errors that say that nothing was written.


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (says(502, PAGE), "502"),
        (says(500, '{"kind": "Status", "message": "boom"}'), "500"),
        (says(200, PAGE), "no Lease"),
        (says(401, "Unauthorized"), "401"),
        (says(403, '{"reason": "Forbidden"}'), "Role"),
        (says(422, '{"reason": "Invalid"}'), "422 Invalid"),
        (says(302, "", Location="http://127.0.0.1:1/"), "302"),
        (lose, "broke"),
    ],
)
async def test_a_question_that_fails_is_an_error_that_names_the_fact_and_leaves_nothing_to_undo(
    site: Site, fault: Fault, said: str
) -> None:
    store = await site.store()
    # Some clients ask once more by themselves.
    site.server.misbehave(fault, "GET", times=3)
    error = await failure(store)
    assert said in str(error)
    assert "html" not in str(error)
    assert "127.0.0.1" not in str(error)
    assert not error.sent
    site.server.behave()
    assert (await ask(store, write("one"))).fence == 1


async def test_a_server_that_is_gone_is_an_error_and_one_that_is_back_is_used(site: Site) -> None:
    store = await site.store()
    port = int(site.server.url.rpartition(":")[2])
    await ask(store, write("one"))
    await site.server.stop()
    error = await failure(store)
    assert not error.sent
    assert "reached" in str(error) or "broke" in str(error)
    await site.server.start(port)
    assert (await ask(store, Release("one"))).verdict is GRANTED


async def test_a_namespace_that_is_not_there_and_one_that_is_going_are_named(site: Site) -> None:
    nowhere = await site.store("nowhere")
    assert "no namespace 'nowhere'" in str(await failure(nowhere))
    site.server.leases.terminating.add("default")
    going = await site.store()
    error = await failure(going)
    assert "being deleted" in str(error)
    assert not error.sent


async def test_what_is_there_can_still_be_released_while_its_namespace_goes(site: Site) -> None:
    store = await site.store()
    await ask(store, write("one"))
    site.server.leases.terminating.add("default")
    assert (await ask(store, Release("one"))).verdict is GRANTED


async def test_a_server_that_asks_for_patience_gets_it_and_not_for_ever(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await site.store()
    site.server.misbehave(says(429, "busy", Retry_After="0"), times=3)
    start = len(site.server.calls)
    assert (await ask(store, write("one"))).verdict is GRANTED
    assert len(calls(site.server, start)) == 5
    monkeypatch.setattr(kubernetes_api, "_PATIENCE", 0.1)
    site.server.misbehave(says(429, "busy", Retry_After="2"), times=100)
    error = await failure(store)
    assert "429" in str(error)
    assert not error.sent


async def test_a_token_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    async with a_site(tmp_path, token="old") as site:
        store = await site.store()
        await ask(store, write("one"))
        site.server.token = "new"
        site.server.kubeconfig(tmp_path)
        start = len(site.server.calls)
        assert (await ask(store, Renew("one", 2 * LEASE))).verdict is GRANTED
        assert calls(site.server, start) == ["PUT"]
        site.server.token = "newer"
        error = await failure(store)
        assert "401" in str(error)
        assert "new" not in str(error)
        (tmp_path / "kubeconfig").write_text(kubeconfig(site.server.url, "newer\n"))
        assert (await ask(store, Release("one"))).verdict is GRANTED


# Conflicts.


async def test_who_is_overtaken_looks_again_and_decides_anew(site: Site) -> None:
    one, two = await site.store(), await site.store()
    await ask(one, read("r1"))

    async def overtaken(request: web.Request, apply: Apply) -> web.StreamResponse:
        assert (await ask(two, read("r2"))).verdict is GRANTED
        return await apply()

    site.server.misbehave(overtaken, "PUT")
    assert (await ask(one, Release("r1"))).verdict is GRANTED
    assert list((await one.peek(KEY)).state.readers) == ["r2"]

    async def taken(request: web.Request, apply: Apply) -> web.StreamResponse:
        assert (await ask(two, write("w2"))).verdict is GRANTED
        return await apply()

    await ask(two, Release("r2"))
    site.server.misbehave(taken, "PUT")
    assert (await ask(one, write("w1"))).verdict is Verdict.HELD
    writer = (await one.peek(KEY)).state.writer
    assert writer is not None
    assert writer.token == "w2"


async def test_of_all_who_create_a_name_at_once_one_writes_it(site: Site) -> None:
    stores = [await site.store() for _ in range(8)]
    replies = await asyncio.gather(*(ask(store, write(f"w{number}")) for number, store in enumerate(stores)))
    assert [reply.verdict for reply in replies].count(GRANTED) == 1
    assert {reply.fence for reply in replies} == {1}


async def test_who_never_gets_through_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_ledger, "_BUDGET", 0.05)
    store = await site.store()
    site.server.misbehave(says(409, '{"reason": "Conflict"}'), "POST", "PUT", times=1000)
    error = await failure(store)
    assert "others kept changing" in str(error)
    # A conflict may be one with ourselves, if the client has sent it twice.
    assert error.sent


# Writes in doubt.


@pytest.mark.parametrize("fault", [apply_and_lose, lose, apply_and_say_504, says(502, PAGE)])
@pytest.mark.parametrize("new", [True, False])
async def test_an_acquire_in_doubt_is_one_grant(site: Site, fault: Fault, new: bool) -> None:
    store, other = await site.store(), await site.store()
    if not new:
        await ask(store, read("before"))
        await ask(store, Release("before"))
    site.server.misbehave(fault, "POST", "PUT")
    reply = await ask(store, write("one"))
    assert (reply.verdict, reply.fence, reply.poisoned) == (GRANTED, 1, False)
    assert (await ask(other, write("two"))).verdict is Verdict.HELD
    assert (await ask(store, Release("one"))).verdict is GRANTED
    assert (await ask(other, write("two"))).fence == 2


@pytest.mark.parametrize("fault", [apply_and_lose, lose, apply_and_say_504])
async def test_whatever_else_is_in_doubt_is_answered_as_if_it_had_been_written_once(site: Site, fault: Fault) -> None:
    store = await site.store()
    for token, mode in (("w", write), ("r", read)):
        await ask(store, mode(token))
        for command in (Renew(token, 2 * LEASE), Release(token)):
            await site.clock.advance(0.1)
            site.server.misbehave(fault, "PUT")
            assert (await ask(store, command)).verdict is GRANTED, command
        assert (await store.peek(KEY)).state.readers == {}
    await ask(store, write("w"))
    site.server.misbehave(fault, "PUT")
    assert (await ask(store, Downgrade("w", LEASE))).verdict is GRANTED
    site.server.misbehave(fault, "PUT")
    assert (await ask(store, Undo("w"))).verdict is GRANTED


async def test_the_server_is_told_how_long_it_may_take_and_who_writes(site: Site) -> None:
    store = await site.store(timeout=2)
    asked: list[tuple[str, str | None, str | None]] = []

    async def noted(request: web.Request, apply: Apply) -> web.StreamResponse:
        asked.append((request.method, request.query.get("timeout"), request.query.get("fieldManager")))
        return await apply()

    site.server.misbehave(noted, times=100)
    await ask(store, write("one"))
    await ask(store, Release("one"))
    # A little less than our own patience: better to be told than to guess.
    assert asked == [("GET", "1800ms", None), ("POST", "1800ms", "grelmicro"), ("PUT", "1800ms", "grelmicro")]


async def test_a_call_that_hangs_is_given_up_in_time_and_settled(site: Site) -> None:
    store = await site.store(timeout=0.1)
    for fault in (site.server.hang, site.server.apply_and_hang):
        site.server.misbehave(fault, "POST", "PUT")
        reply = await ask(store, write("one"))
        assert reply.verdict is GRANTED
        assert (await ask(store, Release("one"))).verdict is GRANTED


@pytest.mark.parametrize("new", [True, False])
async def test_a_write_that_arrives_late_finds_the_door_shut(site: Site, new: bool) -> None:
    store = await site.store()
    if not new:
        await ask(store, read("before"))
        await ask(store, Release("before"))
    late = Late()
    site.server.misbehave(late, "POST", "PUT")
    assert (await ask(store, write("one"))).fence == 1
    after = site.lease()
    assert set(await late.arrive()) == {409}
    assert site.lease() == after


async def test_a_late_write_of_an_attempt_that_was_given_up_does_not_bring_it_back(site: Site) -> None:
    store = await site.store()
    await ask(store, read("before"))
    await ask(store, Release("before"))
    late = Late()
    site.server.misbehave(late, "PUT", "GET", times=1000)
    error = await failure(store)
    assert error.sent
    site.server.behave()
    await ask(store, Undo("one"))
    await late.arrive()
    state = (await store.peek(KEY)).state
    assert state.writer is None
    assert (await ask(store, write("one"))).verdict is Verdict.BURIED


async def test_a_doubt_that_cannot_be_settled_is_told_as_one(site: Site) -> None:
    store = await site.store()
    await ask(store, read("before"))
    await ask(store, Release("before"))
    site.server.misbehave(apply_and_lose, "POST", "PUT", times=1000)
    site.server.misbehave(says(503, PAGE), "GET", times=1000)
    error = await failure(store)
    assert "503" in str(error)
    assert error.sent


# The watch.


async def test_a_store_has_one_watch_and_hears_by_it(site: Site) -> None:
    holder, waiter = await site.store(), await site.store()
    async with listening(waiter) as ear:
        for _ in range(3):
            await poke(holder, waiter, ear)
        assert site.server.calls.count("WATCH") == 1
        assert ear.all_ == 1


async def test_a_watch_that_ends_goes_on_where_it_ended(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_watch, "_SECONDS", 0.01)
    holder, waiter = await site.store(), await site.store()
    async with listening(waiter) as ear:
        while site.server.calls.count("WATCH") < 3:
            await poke(holder, waiter, ear)
        assert ear.all_ == 1


async def test_a_watch_that_breaks_wakes_everybody_and_is_heard_again(site: Site) -> None:
    holder, waiter = await site.store(), await site.store()
    async with listening(waiter) as ear:
        await poke(holder, waiter, ear)
        site.server.cut_watches()
        await ear.hears(lambda: ear.all_ == 2)
        await poke(holder, waiter, ear)


async def test_a_version_that_is_forgotten_is_read_anew(site: Site) -> None:
    holder, waiter = await site.store(), await site.store()
    fault_seen = asyncio.Event()

    async def forgotten(request: web.Request, apply: Apply) -> web.StreamResponse:
        site.server.leases.forget()
        fault_seen.set()
        return await apply()

    site.server.misbehave(forgotten, "WATCH")
    async with listening(waiter) as ear:
        await fault_seen.wait()
        await ear.hears(lambda: ear.all_ == 2)
        await poke(holder, waiter, ear)


@pytest.mark.parametrize("fault", [says(500, PAGE), says(200, PAGE), says(429, "busy"), lose])
async def test_a_watch_that_fails_is_begun_again(site: Site, fault: Fault) -> None:
    holder, waiter = await site.store(), await site.store()
    site.server.misbehave(fault, "WATCH")
    async with listening(waiter) as ear:
        while site.server.calls.count("WATCH") < 2:
            await poke(holder, waiter, ear)
        await poke(holder, waiter, ear)


async def test_who_may_not_watch_is_told_and_does_without(site: Site) -> None:
    store = await site.store()
    site.server.misbehave(says(403, '{"reason": "Forbidden"}'), "WATCH", times=1000)
    with pytest.raises(BackendError, match="watch"):
        await store.listen(lambda wake: None)


# Leaders.


async def test_candidates_only_read(site: Site) -> None:
    leader, candidate = await site.store(), await site.store()
    await ask(leader, write("leads"), "leader:main")
    async with listening(candidate) as ear:
        start, seat = len(site.server.calls), f"{candidate.channel}/w"
        for _ in range(3):
            reply = await ask(candidate, write("stands", seat), "leader:main")
            assert (reply.verdict, reply.seated) == (Verdict.HELD, False)
            assert 0 < reply.retry <= LEASE
        assert set(calls(site.server, start)) <= {"GET", "WATCH"}
        await ask(leader, Release("leads"), "leader:main")
        await ear.hears(lambda: ear.now("leader:main"))
        assert ear.now("leader:main") == [seat]
        assert (await ask(candidate, write("stands", seat), "leader:main")).fence == 2


async def test_a_leader_whose_renewals_hang_steps_down_in_time_and_the_other_one_leads(site: Site) -> None:
    here, there = ManualClock(), ManualClock()
    async with site.provider(clock=here) as one, site.provider(clock=there) as two:
        first, second = LeaderElection("main", backend=one), LeaderElection("main", backend=two)
        async with first:
            await asyncio.wait_for(first.wait_for_leader(), 10)
            async with second:
                # Until the other one has seen who leads.
                await site.server.called("GET", site.server.calls.count("GET") + 1)
                site.server.misbehave(site.server.hang, "PUT", times=1000)
                for _ in range(20):
                    await here.advance(0.5)
                assert not first.is_leader()
                # The first one's time stands still from now on: it is stopped, and its lease ends.
                site.server.behave()
                following = asyncio.create_task(second.wait_for_leader())
                async with asyncio.timeout(10):
                    while not following.done():
                        await there.advance(0.5)
                        await asyncio.sleep(0.001)  # the server's pace
                assert (await following).term == 2
                assert not first.is_leader()


async def _asleep(provider: KubernetesProvider) -> None:
    """Wait until whoever waits there has heard that it is in vain for now."""
    queues = provider.backend.crew().waiting.queues
    async with asyncio.timeout(10):
        # The server works on the real clock.
        while not queues or not all(queue._timer for queue in queues.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_leader_that_resigns_is_followed_at_once(site: Site) -> None:
    async with site.provider() as one, site.provider() as two:
        first, second = LeaderElection("main", backend=one), LeaderElection("main", backend=two)
        async with first:
            leading = await asyncio.wait_for(first.wait_for_leader(), 10)
            async with second:
                await site.server.called("WATCH", 2)
                await _asleep(two)
                first.resign()
                # No time passes on their clocks: it is the watch that tells.
                following = await asyncio.wait_for(second.wait_for_leader(), 10)
                assert following.term == leading.term + 1
