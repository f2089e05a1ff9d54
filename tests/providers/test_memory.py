"""What is peculiar to the store in memory."""

import asyncio
import random
import threading
from collections import Counter

import pytest

from grelmicro_fastapi.coordination.state import (
    CLAIM,
    VERSION,
    Acquire,
    Command,
    Mode,
    Poison,
    Release,
    Renew,
    Reply,
    State,
    Verdict,
    Writer,
)
from grelmicro_fastapi.coordination.store import Ask, DirectStore, Scope, Store, Wake
from grelmicro_fastapi.providers.memory import MemoryProvider
from grelmicro_fastapi.testing.clock import ManualClock
from tests.coordination.histories import history

pytestmark = pytest.mark.anyio

KEY = "lock:stock"


def write(token: str, seat: str = "") -> Acquire:
    return Acquire(token, Mode.WRITE, 60_000, seat)


async def ask(store: Store, command: Command, key: str = KEY) -> Reply:
    (answer,) = await store.apply([Ask(key, command, CLAIM)])
    assert isinstance(answer, Reply), answer
    return answer


async def test_its_answers_need_no_turn_of_the_loop() -> None:
    store = MemoryProvider()._store()
    assert isinstance(store, DirectStore)
    with pytest.raises(StopIteration) as ended:
        store.apply([Ask(KEY, write("one"), CLAIM)]).send(None)
    assert [reply.verdict for reply in ended.value.value] == [Verdict.GRANTED]


async def test_the_short_way_is_the_way_of_the_commands_that_it_stands_for() -> None:
    rng, granted = random.Random(20_261_202), Counter[str]()
    for _ in range(300):
        clock = ManualClock()
        told, short = MemoryProvider(clock=clock)._store(), MemoryProvider(clock=clock)._store()
        before = None
        for now, claim, commands in history(rng):
            clock.jump(0 if before is None else (now - before) / 1_000)
            before = now
            for command in commands:
                reply = told.at_once(KEY, command, claim)
                state = (await short.peek(KEY)).state
                went = False
                match command:
                    case Acquire(token, mode, ttl, expect=None, note=note):
                        found = short.enter(KEY, token, mode, ttl, note)
                        assert not found or reply == Reply(Verdict.GRANTED, *found)
                        went = found is not None
                    case Release(token, 0, Poison.CLEAR):
                        went = short.leave(KEY, token)
                        assert not went or reply == Reply(Verdict.GRANTED, state.fence)
                if went:
                    granted[type(command).__name__] += 1
                else:
                    assert (await short.peek(KEY)).state == state
                    assert short.at_once(KEY, command, claim) == reply
                assert await short.peek(KEY) == await told.peek(KEY)
    assert min(granted["Acquire"], granted["Release"]) > 50


async def test_the_short_way_is_shut_where_a_newer_release_has_been() -> None:
    provider = MemoryProvider()
    store = provider._store()
    provider._states.kept[KEY] = State(version=VERSION + 1)
    assert store.enter(KEY, "one", Mode.WRITE, 60_000, "") is None
    provider._states.kept[KEY].writer = Writer("one", 0, 2**62)
    assert not store.leave(KEY, "one")


async def test_loops_in_other_threads_share_the_states_of_one_provider() -> None:
    provider = MemoryProvider()

    async def visit(token: str) -> Verdict:
        async with provider:
            return (await ask(provider.backend.crew().store, write(token))).verdict

    assert await visit("here") is Verdict.GRANTED
    assert await asyncio.to_thread(asyncio.run, visit("there")) is Verdict.HELD
    assert (await ask(MemoryProvider()._store(), write("elsewhere"))).verdict is Verdict.GRANTED


async def test_a_wake_crosses_from_one_loop_to_another() -> None:
    provider, ready, woken = MemoryProvider(), threading.Event(), threading.Event()
    holder = provider._store()
    heard: list[tuple[Wake, int]] = []

    async def wait() -> None:
        store, left = provider._store(), asyncio.Event()

        def hear(wake: Wake | None) -> None:
            if wake:
                heard.append((wake, threading.get_ident()))
                woken.set()
                left.set()

        listener = asyncio.create_task(store.listen(hear))
        await asyncio.sleep(0)
        await ask(store, write("waits", f"{store.channel}/w"))
        ready.set()
        await left.wait()
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)

    await ask(holder, write("held"))
    thread = threading.Thread(target=asyncio.run, args=(wait(),))
    thread.start()
    assert await asyncio.to_thread(ready.wait, 10)
    await ask(holder, Release("held"))
    assert await asyncio.to_thread(woken.wait, 10)
    await asyncio.to_thread(thread.join, 10)
    assert [(wake.key, wake.after, where) for wake, where in heard] == [(KEY, 0, thread.ident)]


async def test_a_listener_whose_loop_has_ended_harms_nobody() -> None:
    provider = MemoryProvider()
    holder, gone = provider._store(), provider._store()
    listening: list[asyncio.Task[None]] = []

    async def vanish() -> None:
        listening.append(asyncio.create_task(gone.listen(lambda wake: None)))
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    await asyncio.to_thread(loop.run_until_complete, vanish())
    await ask(holder, write("held"))
    await ask(gone, write("waits", f"{gone.channel}/w"))
    loop.close()
    assert (await ask(holder, Release("held"))).verdict is Verdict.GRANTED
    assert (await ask(holder, write("waits", f"{gone.channel}/w"))).verdict is Verdict.GRANTED
    # The loop was never told to end its tasks: this one is ended by hand.
    listening[0].get_coro().close()  # type: ignore[union-attr]  # a task of a coroutine
    listening[0]._log_destroy_pending = False  # type: ignore[attr-defined]  # and says nothing about it


async def test_threads_that_hammer_one_key_lose_nothing() -> None:
    provider, counter = MemoryProvider(), [0]

    async def hammer(name: str) -> None:
        store = provider._store()
        granted = 0
        while granted < 200:
            if (await ask(store, write(f"{name}{granted}"))).verdict is Verdict.GRANTED:
                granted += 1
                counter[0] += 1
                await ask(store, Release(f"{name}{granted - 1}"))
            await asyncio.sleep(0)

    await asyncio.gather(*(asyncio.to_thread(asyncio.run, hammer(name)) for name in "abc"))
    assert counter == [600]
    assert (await provider._store().peek(KEY)).state.fence == 600


async def test_what_was_never_held_takes_no_memory() -> None:
    provider = MemoryProvider()
    store = provider._store()
    for number in range(100):
        await ask(store, Renew("nobody", 1_000), f"lock:{number}")
        await ask(store, Release("nobody"), f"lock:{number}")
        await ask(store, write("one")._replace(expect=5), f"lock:{number}")
    assert provider._states.kept == {}


async def test_a_step_of_the_wall_clock_changes_no_lease() -> None:
    clock = ManualClock()
    store = MemoryProvider(clock=clock)._store()
    await ask(store, write("one"))
    before = await store.peek(KEY)
    clock.step_wall(-86_400)
    assert await store.peek(KEY) == before


def test_the_scope_is_the_process() -> None:
    assert MemoryProvider.scope is Scope.PROCESS
