"""Guards hold their promises where the store is in our own memory, too, and is asked in the step that asks."""

import asyncio
import gc
import weakref

import pytest

from grelmicro_fastapi.coordination.guards import ReadGuard
from grelmicro_fastapi.errors import LockNotOwnedError
from tests.coordination.crews import Fleet, empty

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("seconds", [59.9, 61])
async def test_a_good_body_whose_lease_was_lost_raises(seconds: float) -> None:
    fleet = Fleet()
    async with fleet.direct() as process:
        with pytest.raises(LockNotOwnedError, match="has ended"):
            async with process.lock():
                await fleet.clock.advance(seconds)
        assert empty(await fleet.state("lock:x"))


async def test_a_body_that_raises_gives_back_in_the_same_step_and_keeps_the_poison() -> None:
    fleet = Fleet()
    async with fleet.direct() as process:
        catalog = process.catalog()
        await (await catalog.write.acquire()).release(poison=True)
        with pytest.raises(KeyError) as caught:
            async with catalog.write as writing:
                raise KeyError(writing.poisoned)
        assert caught.value.args == (True,)
        assert not writing.lost
        await writing.release()
        state = await fleet.state()
        assert empty(state)
        assert state.poisoned


async def test_the_lease_lives_until_the_last_who_joined_it_has_left() -> None:
    fleet = Fleet()
    async with fleet.direct() as process:
        catalog, go = process.catalog(), asyncio.Event()

        async def child() -> None:
            async with catalog.read as guard:
                await go.wait()
                guard.check()

        async with catalog.read as parent:
            task = asyncio.create_task(child())
            await fleet.clock.settle()
        assert not parent.valid
        assert (await fleet.state()).readers
        await parent.release()
        go.set()
        await task
        assert empty(await fleet.state())


async def test_who_joined_a_lease_is_told_of_its_loss_when_who_took_it_has_left() -> None:
    fleet = Fleet()
    async with fleet.direct() as process:
        catalog = process.catalog(on_lost="cancel")

        async def child() -> None:
            async with catalog.read:
                await asyncio.get_running_loop().create_future()

        async with catalog.read:
            task = asyncio.create_task(child())
            await fleet.clock.settle()
        await fleet.clock.advance(61)
        assert task.done()
        with pytest.raises(LockNotOwnedError):
            await task


async def test_when_all_have_left_nothing_is_kept_of_what_they_shared() -> None:
    fleet = Fleet()
    async with fleet.direct() as process:
        catalog, go = process.catalog(), asyncio.Event()

        async def read(*children: asyncio.Event) -> "weakref.ref[object]":
            guard: ReadGuard = await catalog.read.acquire()
            reading = [asyncio.create_task(read()) for _ in children]
            await go.wait()
            await guard.release()
            await asyncio.gather(*reading)
            return weakref.ref(guard.lease)

        tasks = [asyncio.create_task(read(*children)) for children in ([], [go], [go, go])]
        await fleet.clock.settle()
        assert len((await fleet.state()).readers) == 3
        go.set()
        leases = await asyncio.gather(*tasks)
        assert empty(await fleet.state())
        tasks.clear()
        await fleet.clock.settle()
        gc.collect()
        assert [lease() for lease in leases] == [None] * 3
