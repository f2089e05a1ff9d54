"""What every store promises, on every deployment of `tests/stores.py`, with the time handed in."""

import asyncio
import copy
import itertools
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grelmicro_fastapi.coordination.rules import step
from grelmicro_fastapi.coordination.state import (
    CLAIM,
    VERSION,
    Acquire,
    Advance,
    Command,
    Force,
    Leave,
    Mend,
    Mode,
    Poison,
    Purge,
    Release,
    Renew,
    Reply,
    State,
    Undo,
    Vacate,
    Verdict,
)
from grelmicro_fastapi.coordination.store import Ask, Scope, Store, Wake
from grelmicro_fastapi.errors import BackendError
from tests.coordination.histories import history
from tests.stores import StoreUnderTest, on_every_store

pytestmark = [pytest.mark.anyio, on_every_store()]

KEY = "rwlock:catalog"
MINUTE = 60_000
_numbers = itertools.count()

# An example of Hypothesis takes a key of its own, so that it may share the store with the others.
shared = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(token: str, seat: str = "", ttl: int = MINUTE) -> Acquire:
    return Acquire(token, Mode.WRITE, ttl, seat)


def read(token: str, seat: str = "", ttl: int = MINUTE) -> Acquire:
    return Acquire(token, Mode.READ, ttl, seat)


async def ask(store: Store, command: Command, key: str = KEY, claim: int = CLAIM) -> Reply:
    return (await replies(store, [Ask(key, command, claim)]))[0]


async def replies(store: Store, asks: Sequence[Ask]) -> list[Reply]:
    answers = await store.apply(asks)
    assert len(answers) == len(asks)
    found = [answer for answer in answers if isinstance(answer, Reply)]
    assert len(found) == len(asks), answers
    return found


def buried(state: State, now: int) -> State:
    """A store may keep the dead a while: compared is what is left without them."""
    state = copy.deepcopy(state)
    step(state, Vacate(), now)
    return state


def untold(reply: Reply) -> Reply:
    """The reply without its wakes: a store that has delivered them need not name them."""
    return reply._replace(wakes=())


class Ear:
    """What one store's listener heard."""

    def __init__(self) -> None:
        self.heard: list[Wake] = []
        self._news = asyncio.Event()

    def __call__(self, wake: Wake | None) -> None:
        if wake:
            self.heard.append(wake)
            self._news.set()

    def now(self, key: str = KEY) -> list[str]:
        """The seats told to ask at once."""
        return [wake.seat for wake in self.heard if wake.key == key and wake.after == 0]

    async def hears(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not true():
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def listening(store: Store) -> AsyncIterator[Ear]:
    ear = Ear()
    started = asyncio.Event()
    listener = asyncio.create_task(store.listen(lambda wake: (started.set(), ear(wake))))
    # A store that has to connect for this says when it has: by "everybody", for it may have missed something.
    async with asyncio.timeout(10):
        while not started.is_set():
            await poke(store, ear)
            await asyncio.sleep(0.001)
    ear.heard.clear()
    try:
        yield ear
    finally:
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)


async def poke(store: Store, ear: Ear) -> None:
    """Make something happen that this store's own seat must hear of."""
    key, seat = f"lock:poke-{next(_numbers)}", f"{store.channel}/w"
    await replies(store, [Ask(key, write("there"), CLAIM), Ask(key, write("here", seat), CLAIM)])
    await replies(store, [Ask(key, Release("there"), CLAIM), Ask(key, Leave(seat), CLAIM)])


@pytest.mark.parametrize("expect", [1, 2**53, 2**63 - 1, 2**63, 10**19 - 1, 10**40])
async def test_a_generation_that_never_was_is_a_mismatch_however_large(site: StoreUnderTest, expect: int) -> None:
    store = await site.store()
    assert (await ask(store, write("a", f"{store.channel}/w")._replace(expect=expect))).verdict is Verdict.MISMATCH
    assert (await ask(store, write("a", f"{store.channel}/w"))).verdict is Verdict.GRANTED


async def test_what_is_asked_is_answered_as_the_law_says(site: StoreUnderTest) -> None:
    store = await site.store()
    state = State()
    commands: list[Command | float] = [
        read("reader", "a/r"),
        read("other"),
        write("writer", "b/w"),
        0.1,
        read("late", "c/r"),
        Renew("reader", 2 * MINUTE),
        Release("reader"),
        Release("other"),
        Release("other"),
        write("writer", "b/w"),
        write("writer", "b/w"),
        Acquire("expecting", Mode.WRITE, MINUTE, expect=0),
        Release("writer", poison=Poison.SET),
        0.2,
        read("late", "c/r"),
        Undo("late"),
        read("late", "c/r"),
        Leave("c/r"),
        write("dies", ttl=500),
        0.5,
        Vacate(),
        Mend(),
        write("rests"),
        Release("rests", min_hold=1_000),
        write("too soon"),
        1.0,
        write("forced", ttl=MINUTE),
        Force(),
        Purge(1_000),
        31.0,
        Mend(),
        1.0,
        Purge(1_000),
    ]
    for command in commands:
        if isinstance(command, float):
            await site.clock.advance(command)
            continue
        now = (await store.peek(KEY)).now
        expected = step(state, command, now)
        assert untold(await ask(store, command)) == untold(expected), command
        kept, then = await store.peek(KEY)
        assert then == now
        assert buried(kept, now) == buried(state, now), command


@shared
@given(seed=st.integers(0, 2**32))
async def test_any_history_ends_in_the_state_that_the_law_gives(site: StoreUnderTest, seed: int) -> None:
    store, other = await site.stores(2)
    key, state, before = f"rwlock:history-{next(_numbers)}", State(), 0
    try:
        for batch in history(random.Random(seed), 12):
            await site.clock.advance((batch.now - before) / 1000 if before else 0)
            before = batch.now
            now = (await store.peek(key)).now
            commands = [
                command._replace(to=now + command.to - batch.now) if isinstance(command, Advance) else command
                for command in batch.commands
            ]
            expected = [untold(step(state, command, now, batch.claim)) for command in commands]
            asks = [Ask(key, command, batch.claim) for command in commands]
            assert [untold(reply) for reply in await replies(store, asks)] == expected
            assert buried((await other.peek(key)).state, now) == buried(state, now)
            store, other = other, store
    finally:
        await store.close()
        await other.close()


async def test_the_order_within_a_batch_is_kept(site: StoreUnderTest) -> None:
    store = await site.store()
    asks = [
        Ask("lock:a", write("one"), CLAIM),
        Ask("lock:b", write("one"), CLAIM),
        Ask("lock:a", write("two"), CLAIM),
        Ask("lock:a", Release("one"), CLAIM),
        Ask("lock:b", write("one"), CLAIM),
        Ask("lock:a", write("two"), CLAIM),
    ]
    verdicts = [(reply.verdict, reply.fence) for reply in await replies(store, asks)]
    granted, held = Verdict.GRANTED, Verdict.HELD
    assert verdicts == [(granted, 1), (granted, 1), (held, 1), (granted, 1), (granted, 1), (granted, 2)]


async def test_an_empty_batch_is_answered_by_nothing(site: StoreUnderTest) -> None:
    store = await site.store()
    assert list(await store.apply([])) == []


async def test_a_refusal_without_a_seat_leaves_no_trace(site: StoreUnderTest) -> None:
    store = await site.store()
    await ask(store, write("one"))
    before = await store.peek(KEY)
    assert (await ask(store, write("two"))).verdict is Verdict.HELD
    assert (await ask(store, Renew("two", MINUTE))).verdict is Verdict.GONE
    assert await store.peek(KEY) == before


async def test_asking_for_what_is_not_there_makes_nothing(site: StoreUnderTest) -> None:
    store = await site.store()
    for command in (Release("nobody"), Renew("nobody", 1), Leave("nobody/r"), Vacate(), Purge(0)):
        await ask(store, command)
    assert [key async for key in store.keys("")] == []


async def test_a_peek_changes_nothing_and_its_state_is_a_copy(site: StoreUnderTest) -> None:
    store = await site.store()
    await ask(store, write("one", ttl=100))
    await site.clock.advance(1)
    first = await store.peek(KEY)
    first.state.fence = 99
    second = await store.peek(KEY)
    assert second.state.fence == 1
    assert second.state.writer is None or second.state.writer.token == "one"


async def test_the_clock_of_a_store_is_near_the_epoch_and_follows_the_time(site: StoreUnderTest) -> None:
    store = await site.store()
    before = (await store.peek(KEY)).now
    assert abs(before - site.clock.wall() * 1000) < MINUTE
    await site.clock.advance(2.5)
    assert (await store.peek(KEY)).now - before == 2_500


async def test_a_lease_lasts_to_the_millisecond(site: StoreUnderTest) -> None:
    store = await site.store()
    await ask(store, write("one", ttl=50))
    await site.clock.advance(0.049)
    assert (await ask(store, write("two"))).verdict is Verdict.HELD
    await site.clock.advance(0.001)
    reply = await ask(store, write("two"))
    assert (reply.verdict, reply.fence, reply.poisoned) == (Verdict.GRANTED, 2, True)


async def test_one_store_sees_what_another_did(site: StoreUnderTest) -> None:
    one, two = await site.stores(2)
    assert one.channel != two.channel
    await ask(one, write("one"))
    assert (await ask(two, write("two"))).verdict is Verdict.HELD
    await ask(one, Release("one"))
    assert (await ask(two, write("two"))).fence == 2


async def test_two_stores_that_hammer_one_key_lose_nothing(site: StoreUnderTest) -> None:
    stores = await site.stores(2)
    count = 0

    async def hammer(store: Store, name: str) -> int:
        nonlocal count
        granted = 0
        for number in range(400):
            token = f"{name}{number}"
            if (await ask(store, write(token))).verdict is Verdict.GRANTED:
                granted += 1
                seen = count
                await asyncio.sleep(0)
                count = seen + 1
                assert (await ask(store, Release(token))).verdict is Verdict.GRANTED
            if granted == 25:
                break
            await asyncio.sleep(0.001)
        return granted

    granted = await asyncio.gather(*(hammer(store, name) for store, name in zip(stores, "ab", strict=True)))
    assert granted == [25, 25]
    assert count == 50
    assert (await stores[0].peek(KEY)).state.fence == 50


async def test_wakes_reach_the_named_seats_of_other_stores_and_only_those(site: StoreUnderTest) -> None:
    holder, first, second, other = await site.stores(4)
    async with listening(first) as first_ear, listening(second) as second_ear, listening(other) as other_ear:
        await ask(holder, write("held"))
        await ask(holder, write("held"), "lock:other")
        await ask(first, write("first", f"{first.channel}/w"))
        await ask(second, write("second", f"{second.channel}/w"))
        await ask(other, write("other", f"{other.channel}/w"), "lock:other")

        await ask(holder, Release("held"))
        await first_ear.hears(lambda: first_ear.now())
        assert first_ear.now() == [f"{first.channel}/w"]
        assert (await ask(first, write("first", f"{first.channel}/w"))).verdict is Verdict.GRANTED

        await ask(holder, Release("held"), "lock:other")
        await other_ear.hears(lambda: other_ear.now("lock:other"))
        assert other_ear.now("lock:other") == [f"{other.channel}/w"]
        assert other_ear.now() == []

        await ask(first, Release("first"))
        await second_ear.hears(lambda: second_ear.now())
        assert (await ask(second, write("second", f"{second.channel}/w"))).fence == 3
        assert first_ear.now() == [f"{first.channel}/w"]


async def test_a_leaving_writer_wakes_every_waiting_reader(site: StoreUnderTest) -> None:
    holder, one, two = await site.stores(3)
    async with listening(one) as one_ear, listening(two) as two_ear:
        await ask(holder, write("held"))
        for store in (one, two):
            await ask(store, read(store.channel, f"{store.channel}/r"))
        await ask(holder, Release("held"))
        for store, ear in ((one, one_ear), (two, two_ear)):
            await ear.hears(lambda ear=ear: ear.now())
            assert (await ask(store, read(store.channel, f"{store.channel}/r"))).verdict is Verdict.GRANTED


async def test_a_store_hears_of_its_own_seats_too(site: StoreUnderTest) -> None:
    store = await site.store()
    async with listening(store) as ear:
        await ask(store, write("held"))
        await ask(store, write("waits", f"{store.channel}/w"))
        await ask(store, Release("held"))
        await ear.hears(lambda: ear.now())


async def test_the_seat_behind_is_told_when_to_look_should_the_one_before_it_not_come(site: StoreUnderTest) -> None:
    holder, first, second = await site.stores(3)
    async with listening(second) as ear:
        await ask(holder, write("held"))
        await ask(first, write("first", f"{first.channel}/w"))
        await ask(second, write("second", f"{second.channel}/w"))
        await ask(holder, Release("held"))
        await ear.hears(lambda: any(0 < wake.after <= CLAIM for wake in ear.heard))
        assert ear.now() == []
        await site.clock.advance(CLAIM / 1000)
        assert (await ask(second, write("second", f"{second.channel}/w"))).verdict is Verdict.GRANTED


async def test_a_burial_wakes_as_a_release_does(site: StoreUnderTest) -> None:
    holder, waiter = await site.stores(2)
    async with listening(waiter) as ear:
        await ask(holder, write("dies", ttl=1_000))
        await ask(waiter, write("waits", f"{waiter.channel}/w"))
        await site.clock.advance(1)
        assert await holder.vacate() == 1
        await ear.hears(lambda: ear.now())


async def test_names_with_odd_characters_are_kept_apart_and_found_by_prefix(site: StoreUnderTest) -> None:
    store = await site.store()
    names = [
        "a",
        "A",
        "a ",
        "a:b",
        "a/b",
        "a%b",
        "a_b",
        "a{b}",
        "{a}b",
        "日本",
        "ü",
        "'",
        '"',
        "\\",
        "*",
        "a*",
        "[a]",
        "😀",
    ]
    names.append("x" * 512)
    for name in names:
        await ask(store, write(name), f"lock:{name}")
    await ask(store, write("another kind"), "rwlock:a")
    found = [key async for key in store.keys("lock:")]
    assert sorted(found) == sorted(f"lock:{name}" for name in names)
    assert len(found) == len(names)
    assert sorted([key async for key in store.keys("lock:a")]) == sorted(f"lock:{n}" for n in names if n[0] == "a")
    assert [key async for key in store.keys("lock:a*")] == ["lock:a*"]
    assert [key async for key in store.keys("lock:%")] == []
    for name in names:
        writer = (await store.peek(f"lock:{name}")).state.writer
        assert writer is not None
        assert writer.token == name


@shared
@given(names=st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20), unique=True))
async def test_distinct_names_never_collide(site: StoreUnderTest, names: list[str]) -> None:
    store = await site.store()
    keys = [f"lock:{next(_numbers)}"] if not names else [f"lock:{name}:{next(_numbers)}" for name in names]
    answers = await replies(store, [Ask(key, write(key), CLAIM) for key in keys])
    assert {(reply.verdict, reply.fence) for reply in answers} == {(Verdict.GRANTED, 1)}
    for key in keys:
        writer = (await store.peek(key)).state.writer
        assert writer is not None
        assert writer.token == key
    await store.close()


async def test_tokens_seats_and_notes_are_kept_letter_by_letter(site: StoreUnderTest) -> None:
    store = await site.store()
    odd = "worker ü:task:'\"\\%日:\t\n r:s:g: 😀"
    await ask(store, Acquire(odd, Mode.WRITE, MINUTE, note=odd))
    await ask(store, read("reader", f"{odd}/r"))
    state = (await store.peek(KEY)).state
    assert state.writer is not None
    assert (state.writer.token, state.writer.note, state.seats[0].id) == (odd, odd, f"{odd}/r")
    assert (await ask(store, Release(odd))).verdict is Verdict.GRANTED


async def test_large_numbers_are_kept_digit_by_digit(site: StoreUnderTest) -> None:
    store = await site.store()
    now = (await store.peek(KEY)).now
    assert (await ask(store, Advance("claims", now))).fence == now
    century = 3_153_600_000_000
    await ask(store, write("long", ttl=century), "lock:long")
    writer = (await store.peek("lock:long")).state.writer
    assert writer is not None
    assert writer.until == writer.since + century


async def test_vacate_buries_what_is_dead_and_nothing_else(site: StoreUnderTest) -> None:
    store = await site.store()
    await ask(store, write("dies", ttl=1_000), "lock:dies")
    await ask(store, read("dies", ttl=1_000), "lock:reader")
    await ask(store, write("lives"), "lock:lives")
    await ask(store, write("idles"), "lock:idles")
    await ask(store, Release("idles"), "lock:idles")
    before = {key: (await store.peek(key)).state for key in ("lock:lives", "lock:idles")}
    await site.clock.advance(1)
    assert await store.vacate() == 2
    assert await store.vacate() == 0
    dead = (await store.peek("lock:dies")).state
    assert (dead.writer, dead.poisoned, dead.fence) == (None, True, 1)
    assert (await store.peek("lock:reader")).state.readers == {}
    assert {key: (await store.peek(key)).state for key in before} == before


async def test_purge_drops_idle_names_whose_fences_go_on_growing(site: StoreUnderTest) -> None:
    store, other = await site.stores(2)
    for token in "abc":
        await ask(store, write(token), "lock:idle")
        await ask(store, Release(token), "lock:idle")
    await ask(store, write("died", ttl=1_000), "lock:poisoned")
    await ask(store, write("held", ttl=100 * MINUTE), "lock:held")
    await ask(store, Advance("claims", (await store.peek(KEY)).now - 5), "tick:sweep")
    await site.clock.advance(50)
    await ask(store, write("fresh"), "lock:fresh")
    await ask(store, Release("fresh"), "lock:fresh")
    await site.clock.advance(11)

    assert await store.purge(60) == 1
    assert sorted([key async for key in store.keys("")]) == ["lock:fresh", "lock:held", "lock:poisoned", "tick:sweep"]
    assert (await ask(other, write("back"), "lock:idle")).fence > 3
    assert (await ask(other, write("next"), "lock:fresh")).fence == 2


async def test_a_name_that_is_purged_again_and_again_never_repeats_a_fence(site: StoreUnderTest) -> None:
    store, other = await site.stores(2)
    fences: list[int] = []
    for _ in range(4):
        for token in "ab":
            fences.append((await ask(store, write(token), "lock:idle")).fence)
            await ask(store, Release(token), "lock:idle")
        await site.clock.advance(2)
        assert await other.purge(1) == 1
        fences.append((await store.peek("lock:idle")).state.fence)
    assert sorted(fences) == fences
    assert len({*fences[0::3], *fences[1::3]}) == 8


async def test_a_state_of_a_newer_law_is_an_error_that_names_both_versions(site: StoreUnderTest) -> None:
    store = await site.store()
    await ask(store, write("one"), "lock:newer")
    await ask(store, write("two", "a/w"), "lock:newer")
    before = (await store.peek("lock:newer")).state
    await site.write_version(store, "lock:newer", VERSION + 1)
    asks = [Ask("lock:newer", Release("one"), CLAIM), Ask("lock:known", write("one"), CLAIM)]
    refused, granted = await store.apply(asks)
    assert isinstance(refused, BackendError)
    assert f"version {VERSION + 1}" in str(refused)
    assert f"knows {VERSION}" in str(refused)
    assert "lock:newer" in str(refused)
    assert isinstance(granted, Reply)
    assert granted.verdict is Verdict.GRANTED
    await site.clock.advance(120)
    assert await store.vacate() == 1
    assert await store.purge(0) == 0
    await site.write_version(store, "lock:newer", VERSION)
    assert (await store.peek("lock:newer")).state == before


async def test_a_store_may_be_opened_and_closed_twice_and_used_again_afterwards(site: StoreUnderTest) -> None:
    store = site.make()
    await store.open()
    await store.open()
    await ask(store, write("one"))
    await store.close()
    await store.close()
    await store.open()
    assert (await ask(store, write("one"))).fence == 1
    assert (await ask(store, write("two"))).verdict is Verdict.HELD
    await store.close()


async def test_listening_ends_when_it_is_cancelled_and_may_begin_again(site: StoreUnderTest) -> None:
    holder, waiter = await site.stores(2)
    for round in range(2):
        async with listening(waiter) as ear:
            await ask(holder, write(f"held{round}"))
            await ask(waiter, write(f"waits{round}", f"{waiter.channel}/w"))
            await ask(holder, Release(f"held{round}"))
            await ear.hears(lambda ear=ear: ear.now())
            await ask(waiter, Leave(f"{waiter.channel}/w"))


async def test_a_cancelled_apply_leaves_the_store_usable_and_the_data_whole(site: StoreUnderTest) -> None:
    store, other = await site.stores(2)
    for number in range(30):
        token, key = f"t{number}", f"lock:{number}"
        asks = [Ask(key, write(token), CLAIM), Ask(f"{key}b", write(token), CLAIM)]
        apply = asyncio.create_task(store.apply(asks))
        for _ in range(number % 6):
            await asyncio.sleep(0)
        if number >= 20:
            await asyncio.sleep(number / 50_000)
        apply.cancel()
        await asyncio.gather(apply, return_exceptions=True)
        # Done or not: what the next one finds must be one of the two, and its own command must be obeyed.
        for found in await replies(store, [Ask(key, Undo(token), CLAIM), Ask(f"{key}b", Undo(token), CLAIM)]):
            assert found.verdict in (Verdict.GRANTED, Verdict.GONE)
        for ended in (key, f"{key}b"):
            assert (await ask(other, write("next"), ended)).verdict is Verdict.GRANTED
            assert (await ask(store, write(token), ended)).verdict is Verdict.BURIED


async def test_one_lanes_cancelled_apply_does_not_disturb_another(site: StoreUnderTest) -> None:
    store = await site.store()
    for number in range(10):
        cancelled = asyncio.create_task(store.apply([Ask("lock:a", write(f"a{number}"), CLAIM)]))
        innocent = asyncio.create_task(store.apply([Ask("lock:b", write("b"), CLAIM)]))
        await asyncio.sleep(0)
        cancelled.cancel()
        (reply,) = await innocent
        assert isinstance(reply, Reply)
        assert reply.verdict is Verdict.GRANTED
        await asyncio.gather(cancelled, return_exceptions=True)


async def test_a_store_says_how_far_its_word_reaches_and_how_long_a_place_lasts(site: StoreUnderTest) -> None:
    store = site.make()
    assert store.scope in Scope
    assert store.place in (3.0, 15.0)
    assert "/" not in store.channel
    assert isinstance(hash(store.lane(KEY)), int)
