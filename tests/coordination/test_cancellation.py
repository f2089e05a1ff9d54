"""Cancelling an acquire, wherever it happens to be, leaves nothing behind and disturbs nobody."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from grelmicro_fastapi.coordination.guards import WriteGuard
from grelmicro_fastapi.coordination.readwritelock import ReadWriteLock
from grelmicro_fastapi.coordination.view import View
from tests.coordination.crews import Fleet, Process, Steps, empty, hold, live, quiet
from tests.stores import StoreUnderTest, on_every_store

pytestmark = pytest.mark.anyio

POINTS = 60
"""At how many moments to cancel on stores whose acquires take more steps than that."""
VIEWS: dict[str, Callable[[ReadWriteLock], View[Any]]] = {"read": lambda x: x.read, "write": lambda x: x.write}
every_view = pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)


async def steps(acquire: Callable[[int], Awaitable[int]], points: int) -> None:
    """Acquire once to count the steps that it takes, then cancel it at each of them, or at about `points` of them."""
    count = await acquire(-1)
    for number in range(0, count, max(1, count // points)):
        await acquire(number)


async def cancelled_at(number: int, acquire: Callable[[], Any], meanwhile: Callable[[], object]) -> int:
    """Cancel an acquire before the n-th callback of the loop (-1: not at all). How many callbacks there were."""
    victim = asyncio.create_task(acquire())
    with Steps(number, victim.cancel) as counter:
        meanwhile()
        await asyncio.wait([victim])
    if not victim.cancelled():
        await (await victim).release()
    return counter.count


@on_every_store()
async def test_cancelled_at_any_step_while_nobody_is_in_the_way(site: StoreUnderTest) -> None:
    clock = site.clock
    async with Process(await site.store(), clock) as here, Process(await site.store(), clock) as there:
        await free(here, there, VIEWS["write"], None)


@every_view
@pytest.mark.usefixtures("wires")
@pytest.mark.parametrize("timeout", [None, 0, 5])
async def test_cancelled_at_any_step_whatever_it_was_willing_to_wait(
    view: Callable[[ReadWriteLock], View[Any]], timeout: float | None
) -> None:
    fleet = Fleet()
    async with fleet.process() as (here, wire), fleet.direct() as there:
        await free(here, there, view, timeout)
        assert wire.broken_off == 0


async def free(
    here: Process, there: Process, view: Callable[[ReadWriteLock], View[Any]], timeout: float | None
) -> None:
    async def acquire(number: int) -> int:
        lock, key = here.catalog(f"n{number}"), f"rwlock:n{number}"
        count = await cancelled_at(number, lambda: view(lock).acquire(timeout=timeout), lambda: None)
        await quiet(here, key)
        assert empty(await live(here.crew.store, key)), number
        # Whoever comes next gets in at once, and nobody tells tales of a writer that died.
        other = await there.catalog(f"n{number}").write.acquire(timeout=0)
        assert not other.poisoned, number
        await other.release()
        return count

    await steps(acquire, POINTS)


@on_every_store()
@every_view
async def test_cancelled_at_any_step_while_it_waits_for_somebody_who_leaves(
    site: StoreUnderTest, view: Callable[[ReadWriteLock], View[Any]]
) -> None:
    clock = site.clock
    async with Process(await site.store(), clock) as here, Process(await site.store(), clock) as there:

        async def acquire(number: int) -> int:
            name, key = f"n{number}", f"rwlock:n{number}"
            holding = await there.catalog(name).write.acquire()
            others: list[asyncio.Task[Any]] = []
            meanwhile = partial(bystanders, here, there, name, holding, others)
            count = await cancelled_at(number, view(here.catalog(name)).acquire, meanwhile)
            # Nobody has to wait until a place has run out: no second passes here.
            writer, reader, _ = await asyncio.wait_for(asyncio.gather(*others), 10)
            assert not writer.poisoned, number
            assert not reader.poisoned, number
            await quiet(here, key)
            await quiet(there, key)
            assert empty(await live(here.crew.store, key)), number
            return count

        await steps(acquire, POINTS)


def bystanders(here: Process, there: Process, name: str, holding: WriteGuard, tasks: list[asyncio.Task[Any]]) -> None:
    """One who queues behind the victim, one in another process; and the holder, who leaves when all have a place."""

    async def leave() -> None:
        while not (await there.state(f"rwlock:{name}")).seats:
            await there.clock.settle()
        await holding.release()

    done = asyncio.Event()
    done.set()
    for doing in (hold(here.catalog(name).write, done), hold(there.catalog(name).read, done), leave()):
        tasks.append(asyncio.create_task(doing))


@every_view
@pytest.mark.usefixtures("wires")
async def test_cancelled_at_any_step_of_a_slow_network(view: Callable[[ReadWriteLock], View[Any]]) -> None:
    fleet = Fleet()
    async with fleet.process() as (here, wire), fleet.direct() as there:
        wire.going, wire.coming = 0.1, 0.1
        for tenths in range(8):
            victim = asyncio.create_task(view(here.catalog()).acquire())
            await fleet.clock.advance(tenths * 0.05)
            if victim.cancel():
                await fleet.clock.advance(1)
                assert victim.cancelled()
            else:
                await fleet.passing((await victim).release())
            await fleet.clock.advance(1)
            assert empty(await fleet.state()), tenths
            other = await there.catalog().write.acquire(timeout=0)
            assert not other.poisoned
            await other.release()
        # No call was broken off: a caller who goes takes nothing with him.
        assert wire.broken_off == 0


async def test_what_never_left_is_not_sent_once_its_caller_is_cancelled() -> None:
    fleet = Fleet()
    async with fleet.process() as (here, wire):
        wire.open_.clear()
        first = asyncio.create_task(here.lock("first").acquire())
        await fleet.clock.settle()
        second = asyncio.create_task(here.lock("second").acquire(timeout=0))
        third = asyncio.create_task(here.lock("third").acquire())
        await fleet.clock.settle()
        second.cancel()
        third.cancel()
        await fleet.clock.settle()
        wire.open_.set()
        await (await first).release()
        assert {ask.key for batch in wire.batches for ask in batch} == {"lock:first"}


async def test_cancelling_a_release_does_not_take_it_back() -> None:
    fleet = Fleet()
    async with fleet.process() as (here, wire):
        guard = await here.lock().acquire()
        wire.open_.clear()
        release = asyncio.create_task(guard.release())
        await fleet.clock.settle()
        release.cancel()
        await fleet.clock.settle()
        assert release.cancelled()
        assert not guard.valid
        wire.open_.set()
        await fleet.clock.settle()
        assert empty(await fleet.state("lock:x"))
        await guard.release()


async def test_cancelling_a_downgrade_takes_back_whatever_it_became() -> None:
    for steps in range(6):
        fleet = Fleet()
        async with fleet.process() as (here, _):
            guard = await here.catalog().write.acquire()
            downgrade = asyncio.create_task(guard.downgrade())
            for _ in range(steps):
                await asyncio.sleep(0)
            if downgrade.cancel():
                await fleet.clock.settle()
                assert downgrade.cancelled()
            else:
                await (await downgrade).release()
            # It is spent before the request leaves; cancelled before it began, nothing has happened.
            assert guard.valid == (steps == 0)
            await guard.release()
            await fleet.clock.settle()
            assert empty(await fleet.state()), steps
            assert not here.crew._leases
