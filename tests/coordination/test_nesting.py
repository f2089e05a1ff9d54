"""A task never waits for itself, and children read along with their parents."""

import asyncio
import gc
import weakref

import pytest

from grelmicro_fastapi.coordination import ReadWriteLock
from grelmicro_fastapi.errors import LockReentrantError, LockUpgradeError
from grelmicro_fastapi.providers.memory import MemoryProvider
from tests.coordination.crews import Fleet, empty

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("timeout", [None, 0, 5])
async def test_what_a_task_holds_it_cannot_acquire_again_through_any_object(timeout: float | None) -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        lock = process.lock()
        async with lock:
            sent = wire.sent()
            for same in (lock, process.lock(), process.lock(lease_duration=5)):
                with pytest.raises(LockReentrantError, match="'x'"):
                    await same.acquire(timeout=timeout)
        catalog = process.catalog()
        async with catalog.write:
            sent += 2
            for view in (catalog.write, catalog.read, process.catalog().read, process.catalog().write):
                with pytest.raises(LockReentrantError):
                    await view.acquire(timeout=timeout)
        async with catalog.read:
            with pytest.raises(LockReentrantError):
                await process.catalog().read.acquire(timeout=timeout)
            for writer in (catalog.write, process.catalog().write):
                with pytest.raises(LockUpgradeError, match="reads 'x'"):
                    await writer.acquire(timeout=timeout)
        # It is refused here: the store was asked for what was granted and given back, and nothing else.
        assert wire.sent() == sent + 1 + 2


async def test_other_names_and_other_kinds_of_lock_are_free() -> None:
    fleet = Fleet()
    async with fleet.direct() as process, process.lock("x"), process.catalog("x").write, process.catalog("y").read:
        guards = [await process.lock("y").acquire(), await process.catalog("z").read.acquire()]
        for guard in guards:
            await guard.release()


async def test_another_task_waits() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _):
        async with process.catalog().write:
            waiting = [
                asyncio.create_task(view.acquire()) for view in (process.catalog().read, process.catalog().write)
            ]
            await fleet.clock.settle()
            assert not any(task.done() for task in waiting)
        await fleet.clock.settle()
        for task in waiting:
            await (await task).release()
            await fleet.clock.settle()
        async with process.catalog().read:
            writing = asyncio.create_task(process.catalog().write.acquire())
            await fleet.clock.settle()
            assert not writing.done()
        await (await writing).release()


async def test_a_lost_guard_does_not_count() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _):
        lock = process.lock(lease_duration=1)
        lost = await lock.acquire()
        await fleet.clock.advance(2)
        again = await lock.acquire()
        assert again.valid
        assert not lost.valid
        await lock.release()
        assert not again.valid
        lost_read = await process.catalog(lease_duration=1).read.acquire()
        await fleet.clock.advance(2)
        writing = await process.catalog().write.acquire()
        assert not lost_read.valid
        await writing.release()


async def test_a_released_guard_does_not_count_even_before_the_store_has_heard() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        guard = await process.lock().acquire()
        wire.open_.clear()
        release = asyncio.create_task(guard.release())
        await fleet.clock.settle()
        acquire = asyncio.create_task(process.lock().acquire())
        await fleet.clock.settle()
        wire.open_.set()
        await release
        await (await acquire).release()


async def test_a_child_reads_along_while_a_writer_waits() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire), fleet.direct() as other:
        catalog = process.catalog()
        parent = await catalog.read.acquire()
        writer = asyncio.create_task(other.catalog().write.acquire())
        await fleet.clock.settle()
        sent = wire.sent()

        async def grandchild() -> int:
            async with process.catalog().read as guard:
                return guard.generation

        async def child() -> int:
            async with catalog.read as guard:
                assert guard.valid
                with pytest.raises(LockReentrantError):
                    await catalog.read.acquire()
                with pytest.raises(LockUpgradeError):
                    await catalog.write.acquire()
                return await asyncio.create_task(grandchild()) + guard.generation

        # A new reader would have to wait behind that writer, and the parent for its child: for ever.
        assert await asyncio.create_task(child()) == 0
        assert wire.sent() == sent
        assert not writer.done()
        await parent.release()
        await (await writer).release()


async def test_the_lease_lives_until_the_last_who_joined_it_has_left() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _):
        catalog = process.catalog()
        parent = await catalog.read.acquire()
        leave = asyncio.Event()

        async def child() -> None:
            async with catalog.read as guard:
                await leave.wait()
                guard.check()

        task = asyncio.create_task(child())
        await fleet.clock.settle()
        ended = asyncio.create_task(parent.wait_lost())
        await fleet.clock.settle()
        await parent.release()
        await fleet.clock.settle()
        assert ended.result() is False
        assert not parent.valid
        assert not parent.lost
        await parent.release()
        assert (await fleet.state()).readers
        leave.set()
        await task
        assert empty(await fleet.state())
        # Those of one task that leaves by way of the lock, too.
        parent = await catalog.read.acquire()
        leave.clear()
        task = asyncio.create_task(child())
        await fleet.clock.settle()
        watching = asyncio.create_task(parent.wait_lost())
        await fleet.clock.settle()
        await catalog.read.release()
        assert not parent.valid
        assert (await fleet.state()).readers
        leave.set()
        await task
        assert await watching is False
        assert empty(await fleet.state())


async def test_a_lost_lease_is_lost_for_all_who_joined_it_and_left_by_those_who_left_before() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _):
        catalog = process.catalog()
        parent = await catalog.read.acquire()
        early = await asyncio.create_task(catalog.read.acquire())
        late = await asyncio.create_task(catalog.read.acquire())
        await early.release()
        await fleet.clock.advance(61)
        assert [guard.lost for guard in (parent, early, late)] == [True, False, True]


async def test_nobody_joins_what_ended_or_what_it_does_not_descend_from() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _):
        catalog = process.catalog(lease_duration=1)
        ready, go = asyncio.Event(), asyncio.Event()

        async def child() -> str:
            ready.set()
            await go.wait()
            guard = await catalog.read.acquire()
            await guard.release()
            return guard.lease.token

        async with catalog.read as guard:
            token = guard.lease.token
            task = asyncio.create_task(child())
            await ready.wait()
        go.set()
        assert await task != token

        async def sibling() -> str:
            async with catalog.read as guard:
                await fleet.clock.settle()
                return guard.lease.token

        assert len(set(await asyncio.gather(sibling(), sibling()))) == 2


async def test_the_same_name_in_another_store_is_another_lock() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _), fleet.direct() as other:
        guards = [await process.catalog().read.acquire(), await other.catalog().read.acquire()]
        assert guards[0].lease is not guards[1].lease
        assert len((await fleet.state()).readers) == 2
        for guard in guards:
            await guard.release()


async def test_one_who_drops_what_it_joined_does_not_end_the_others_renewal() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _):
        catalog = process.catalog(lease_duration=3, keep_alive=True)
        parent = await catalog.read.acquire()

        async def child() -> None:
            await catalog.read.acquire()

        await asyncio.create_task(child())
        await fleet.clock.advance(15)
        assert parent.valid
        assert (await fleet.state()).readers
        await parent.release()
        await fleet.clock.advance(4)
        assert empty(await fleet.state())


async def test_what_it_has_read_does_not_keep_a_task() -> None:
    """It remembers its read leases, so were a lease to remember its task, only the collector could part them."""
    async with MemoryProvider() as provider:
        catalog = ReadWriteLock("x", backend=provider)

        async def read() -> None:
            async with catalog.read:
                pass

        gc.disable()
        try:
            task = asyncio.create_task(read())
            seen = weakref.ref(task)
            await task
            del task
            # Until then the loop is at the call that said so.
            await asyncio.sleep(0)
            assert seen() is None
        finally:
            gc.enable()
