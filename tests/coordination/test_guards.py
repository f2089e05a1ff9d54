"""What a guard promises while it is held, and how it is left."""

import asyncio
import gc
from collections.abc import Awaitable
from typing import Any

import pytest

from grelmicro_fastapi.coordination.guards import Guard, LockHandle, ReadGuard, WriteGuard
from grelmicro_fastapi.coordination.readwritelock import ReadWriteLockState
from grelmicro_fastapi.coordination.state import CLAIM, Command, Downgrade, Force, Poison, Release, Renew
from grelmicro_fastapi.coordination.view import View
from grelmicro_fastapi.errors import BackendError, LockNotOwnedError, StaleGenerationError
from tests.coordination.crews import Fleet, empty

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("wires")]

MARGIN = 0.01 * 60 + 0.002
"""What drifting clocks may cost of a lease of a minute."""


# Time


async def test_a_guard_ends_before_its_lease_by_the_drift_margin() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _):
        guard = await process.lock().acquire()
        assert guard.expires_in == pytest.approx(60 - MARGIN)
        fleet.clock.jump(60 - MARGIN - 0.001)
        assert guard.valid
        guard.check()
        fleet.clock.jump(0.002)
        assert not guard.valid
        assert guard.lost
        assert guard.expires_in == 0
        with pytest.raises(LockNotOwnedError, match="'x' has ended"):
            guard.check()
        writer = (await fleet.store.peek("lock:x")).state.writer
        assert writer
        assert writer.until > fleet.clock.wall() * 1000


async def test_a_guard_counts_from_before_its_request_was_sent() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        wire.coming = 0.6
        guard = await fleet.passing(process.catalog(lease_duration=1).write.acquire(), step=0.01)
        assert guard.expires_in < 0.4
        # Its end in the store lies behind its end here, to the millisecond.
        while guard.valid:
            assert (await fleet.state()).writer
            await fleet.clock.advance(0.01)
        await fleet.passing(guard.release())


async def test_a_queue_of_commands_on_the_way_costs_no_lease() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        wire.open_.clear()
        first = asyncio.create_task(process.lock("a").acquire())
        await fleet.clock.settle()
        second = asyncio.create_task(process.lock("b", lease_duration=3).acquire())
        await fleet.clock.advance(2)
        wire.open_.set()
        await fleet.clock.settle()
        assert (await second).expires_in == pytest.approx(2.968)
        await (await first).release()
        await (await second).release()


@pytest.mark.parametrize("lease", [0.05, 0.9995, 1.0005, 1.5])
async def test_fractions_of_a_second_are_kept_and_the_store_never_ends_first(lease: float) -> None:
    fleet = Fleet()
    async with fleet.direct() as process:
        guard = await process.lock(lease_duration=lease).acquire()
        writer = (await fleet.state("lock:x")).writer
        assert writer
        assert writer.until - writer.since == pytest.approx(lease * 1000, abs=0.51)
        assert guard.expires_in < (writer.until - writer.since) / 1000
        await guard.release()


async def test_extend_starts_the_lease_anew() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _):
        lock = process.lock()
        guard = await lock.acquire()
        await fleet.clock.advance(50)
        await guard.extend()
        assert guard.expires_in == pytest.approx(60 - MARGIN)
        await fleet.clock.advance(50)
        await lock.extend()
        assert guard.valid
        await fleet.clock.advance(60)
        with pytest.raises(LockNotOwnedError):
            await guard.extend()
        assert not guard.valid


async def test_extend_never_shortens_and_counts_from_before_its_request() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        guard = await process.lock(lease_duration=10).acquire()
        wire.coming = 3
        await fleet.passing(guard.extend())
        assert guard.expires_in <= 7


async def test_extend_of_what_the_store_says_is_gone_is_a_loss() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _):
        guard = await process.lock().acquire()
        fleet.store.at_once("lock:x", Force(), CLAIM)
        assert guard.valid
        with pytest.raises(LockNotOwnedError):
            await guard.extend()
        assert guard.lost
        assert not guard.valid


async def test_after_an_extend_without_an_answer_the_guard_is_valid_until_its_deadline() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        guard = await process.lock(lease_duration=10).acquire()
        wire.loses = lambda command: isinstance(command, Renew)
        with pytest.raises(BackendError):
            await guard.extend()
        assert guard.valid
        wire.loses = lambda command: False
        await guard.extend()
        await guard.release()


async def test_wait_lost_tells_a_loss_from_a_release() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _):
        for released in (True, False):
            guard = await process.lock().acquire()
            waiting = [asyncio.create_task(guard.wait_lost()) for _ in range(2)]
            await fleet.clock.advance(59)
            assert not any(task.done() for task in waiting)
            if released:
                await guard.release()
            await fleet.clock.advance(1)
            assert [task.result() for task in waiting] == [not released] * 2
            assert await guard.wait_lost() is not released


async def test_a_cancelled_wait_for_the_loss_leaves_no_trace() -> None:
    fleet = Fleet()
    async with fleet.direct() as process:
        guard = await process.lock().acquire()
        waiting = asyncio.create_task(guard.wait_lost())
        await fleet.clock.settle()
        waiting.cancel()
        await fleet.clock.settle()
        assert not guard.lease.watchers
        await guard.release()


# What it carries


async def test_fences_rise_and_the_generation_is_that_of_the_last_writer() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _), fleet.direct() as other:
        catalog = process.catalog()
        seen = []
        for view in (catalog.write, other.catalog().write, catalog.write):
            async with view as writing:
                seen.append(writing.fencing_token)
        assert seen == [1, 2, 3]
        async with catalog.read as reading:
            assert reading.generation == 3


@pytest.mark.parametrize("end", ["release", "expiry"])
async def test_tokens_are_not_handed_out_once_the_guard_proves_nothing(end: str) -> None:
    fleet = Fleet()
    async with fleet.direct() as process:
        write = await process.catalog("a").write.acquire()
        read = await process.catalog("b").read.acquire()
        lock = await process.lock("c").acquire()
        for guard in (write, read, lock):
            if end == "release":
                await guard.release()
        if end == "expiry":
            fleet.clock.jump(60)
        for ask in (lambda: write.fencing_token, lambda: read.generation, lambda: lock.fencing_token):
            with pytest.raises(LockNotOwnedError, match="released" if end == "release" else "ended"):
                ask()
        # What was found is no proof, and stays readable.
        assert not write.poisoned
        assert not read.poisoned


async def test_expectations_are_decided_by_the_store() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _), fleet.direct() as other:
        catalog = process.catalog()
        async with other.catalog().write:
            pass
        for timeout in (None, 0, 3):
            with pytest.raises(StaleGenerationError) as stale:
                await catalog.write.acquire(timeout=timeout, expect=0)
            assert stale.value.current == 1
        async with catalog.read as reading:
            generation = reading.generation
        guard = await catalog.write.acquire(expect=generation)
        assert guard.fencing_token == 2
        await guard.release(poison=True)
        with pytest.raises(StaleGenerationError):
            await catalog.write.acquire(expect=2)
        with pytest.raises(StaleGenerationError):
            await other.catalog().write.acquire(expect=1)


async def test_the_state_of_a_lock_is_what_the_store_says() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _), fleet.direct() as other:
        catalog = process.catalog()
        assert await catalog.state() == ReadWriteLockState(0, False, 0, 0, False)
        guard = await other.catalog().write.acquire()
        waiter = asyncio.create_task(catalog.write.acquire())
        await fleet.clock.settle()
        assert await catalog.state() == ReadWriteLockState(1, True, 0, 1, False)
        assert await catalog.write.locked()
        assert await catalog.read.locked()
        assert not await catalog.write.owned()
        assert await other.catalog().write.owned() is False
        await guard.release(poison=True)
        await fleet.clock.settle()
        assert await catalog.state() == ReadWriteLockState(2, True, 0, 0, True)
        await (await waiter).release()
        assert await catalog.state() == ReadWriteLockState(2, False, 0, 0, False)
        async with catalog.read:
            assert (await catalog.state()).readers == 1
            assert await catalog.read.owned()
            fleet.clock.jump(61)
            assert not await catalog.read.owned()
            assert await catalog.state() == ReadWriteLockState(2, False, 0, 0, False)
            # What ended while the body slept is told at its end.
            with pytest.raises(LockNotOwnedError):
                raise await leaving(catalog.read)


async def failing(view: View[Any], first: Awaitable[None] | None = None) -> None:
    """A body that raises."""
    async with view:
        if first:
            await first
        raise ZeroDivisionError


async def reading_until(view: View[WriteGuard], then: Awaitable[None]) -> None:
    async with view as writing:
        await writing.downgrade()
        await then


async def leaving(view: Any) -> BaseException:
    try:
        await view.__aexit__(None, None, None)
    except LockNotOwnedError as error:
        await view.__aenter__()
        return error
    return AssertionError("it was quiet")


async def test_no_token_is_shown() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _):
        catalog = process.catalog()
        async with catalog.write as guard:
            token = guard.lease.token
            shown = [
                repr(guard),
                str(guard),
                repr(guard.lease),
                repr(guard.lease.wish),
                repr(catalog),
                repr(catalog.write),
            ]
            shown.append(repr(process.crew.__dict__))
            assert not [text for text in shown if token in text]
        shown = []
        for wrong in (guard.check, lambda: guard.fencing_token):
            with pytest.raises(LockNotOwnedError) as error:
                wrong()
            shown.append(repr(error.value))
        assert not [text for text in shown if token in text]


# Leaving


async def test_release_acts_once_and_again_does_nothing() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        guard = await process.lock().acquire()
        await guard.release()
        sent = wire.sent()
        other = await process.lock().acquire()
        await guard.release()
        assert wire.sent() == sent + 1
        assert other.valid
        assert (await fleet.state("lock:x")).writer
        await other.release()


async def test_whoever_has_the_guard_may_release_it() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _):
        guard = await process.lock().acquire()
        await asyncio.create_task(guard.release())
        assert not guard.valid
        assert empty(await fleet.state("lock:x"))


@pytest.mark.parametrize("taken", [False, True])
async def test_past_the_deadline_the_store_decides_whether_a_release_was_in_time(taken: bool) -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _), fleet.direct() as other:
        guard = await process.lock().acquire()
        fleet.clock.jump(59.9)
        assert not guard.valid
        if taken:
            fleet.clock.jump(1)
            later = await other.lock().acquire()
            for _ in range(2):
                with pytest.raises(LockNotOwnedError):
                    await guard.release()
            assert later.valid
            assert (await fleet.state("lock:x")).writer
            await later.release()
        else:
            await guard.release()
            await guard.release()
            assert empty(await fleet.state("lock:x"))
            assert not (await fleet.state("lock:x")).poisoned


async def test_a_release_without_an_answer_may_be_called_again_and_goes_on_by_itself() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        for again in (True, False):
            guard = await process.lock().acquire()
            wire.down = True
            with pytest.raises(BackendError):
                await guard.release()
            with pytest.raises(BackendError):
                await guard.release()
            wire.down = False
            if again:
                await guard.release()
            await fleet.clock.advance(1)
            assert empty(await fleet.state("lock:x"))
            await guard.release()


async def test_a_release_whose_answer_was_lost_is_quiet_the_second_time() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        guard = await process.lock().acquire()
        wire.loses = lambda command: isinstance(command, Release)
        with pytest.raises(BackendError):
            await guard.release()
        wire.loses = lambda command: False
        await guard.release()
        lock = process.lock("y")
        await lock.acquire()
        wire.loses = lambda command: isinstance(command, Release)
        with pytest.raises(BackendError):
            await lock.release()
        wire.loses = lambda command: False
        await lock.release()
        with pytest.raises(LockNotOwnedError):
            await lock.release()


async def test_a_failed_release_never_frees_who_came_since() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire), fleet.direct() as other:
        guard = await process.lock(lease_duration=10).acquire()
        wire.down = True
        with pytest.raises(BackendError):
            await guard.release()
        await fleet.clock.advance(11)
        later = await other.lock().acquire()
        wire.down = False
        await guard.release()
        await fleet.clock.advance(5)
        assert later.valid
        assert (await fleet.state("lock:x")).writer
        await later.release()


async def test_a_release_in_doubt_of_what_was_lost_before_is_a_loss() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        guard = await process.lock().acquire()
        fleet.clock.jump(59.9)
        wire.down = True
        with pytest.raises(BackendError):
            await guard.release()
        fleet.clock.jump(1)
        wire.down = False
        with pytest.raises(LockNotOwnedError):
            await guard.release()


async def test_a_release_that_hangs_ends_in_time_and_spends_the_guard_at_once() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        guard = await process.lock().acquire()
        wire.hangs = lambda command: isinstance(command, Release)
        release = asyncio.create_task(guard.release())
        await fleet.clock.settle()
        assert not guard.valid
        await fleet.clock.advance(5.1)
        with pytest.raises(BackendError):
            await release


async def test_the_body_is_not_entered_without_the_lock() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        wire.down = True
        with pytest.raises(BackendError):
            async with process.lock():
                pytest.fail("entered")


async def test_the_error_of_a_body_wins_and_the_lock_is_free() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _):
        with pytest.raises(ZeroDivisionError) as caught:
            await failing(process.catalog().write)
        assert not hasattr(caught.value, "__notes__")
        assert empty(await fleet.state())


async def test_a_loss_is_added_to_the_error_of_the_body() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        with pytest.raises(ZeroDivisionError) as caught:
            await failing(process.lock(), fleet.clock.advance(61))
        assert "has ended" in str(caught.value.__notes__)
        wire.loses = lambda command: isinstance(command, Release)
        with pytest.raises(ZeroDivisionError) as caught:
            await failing(process.lock())
        assert "broke" in str(caught.value.__notes__)


async def test_a_good_body_whose_lease_was_lost_raises() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _):
        # Also where the store would still have taken the release: the body went on without the lock.
        for seconds in (59.9, 61):
            with pytest.raises(LockNotOwnedError, match="has ended"):
                async with process.lock():
                    await fleet.clock.advance(seconds)
            assert empty(await fleet.state("lock:x"))


async def test_a_good_body_whose_release_gets_no_answer_says_so() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        with pytest.raises(BackendError):
            async with process.lock():
                wire.down = True
        wire.down = False
        await fleet.clock.advance(1)
        assert empty(await fleet.state("lock:x"))


@pytest.mark.parametrize("late", [False, True])
async def test_what_was_released_inside_is_quiet(late: bool) -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _):
        async with process.lock() as guard:
            if late:
                await fleet.clock.advance(59.9)
            await guard.release()
        async with process.catalog().write as guard:
            if late:
                await fleet.clock.advance(61)
                with pytest.raises(LockNotOwnedError):
                    await guard.release()
            await guard.release() if not late else None
        lock = process.lock()
        async with lock:
            await lock.release()


async def test_a_lock_releases_only_what_this_task_took_through_it() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _):
        one, same = process.lock(), process.lock()
        guard = await one.acquire()
        for wrong in (same.release, same.extend):
            with pytest.raises(LockNotOwnedError, match="through this object"):
                await wrong()
        for wrong in (one.release, one.extend):
            with pytest.raises(LockNotOwnedError):
                await asyncio.create_task(wrong())
        assert guard.valid
        assert await one.owned()
        assert not await same.owned()
        assert not await asyncio.create_task(one.owned())
        await one.release()
        assert not guard.valid
        with pytest.raises(LockNotOwnedError):
            await one.release()


async def test_one_object_shared_by_two_tasks_never_mixes_their_holds_up() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _):
        lock = process.lock(lease_duration=1)
        overran, entered = asyncio.Event(), asyncio.Event()

        async def overrun() -> None:
            async with lock:
                await overran.wait()

        first = asyncio.create_task(overrun())
        await fleet.clock.advance(1.1)

        async def enter() -> None:
            async with lock as guard:
                overran.set()
                await fleet.clock.settle()
                assert guard.valid
                assert (await fleet.state("lock:x")).writer
                entered.set()

        await asyncio.create_task(enter())
        assert entered.is_set()
        with pytest.raises(LockNotOwnedError):
            await first


async def test_a_block_left_by_another_task_releases_what_was_entered() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _):
        lock = process.lock()
        await asyncio.create_task(lock.__aenter__())
        await asyncio.create_task(lock.__aexit__(None, None, None))
        assert empty(await fleet.state("lock:x"))
        read = process.catalog().read
        await asyncio.create_task(read.__aenter__())
        await asyncio.create_task(read.__aenter__())
        with pytest.raises(RuntimeError, match="several tasks"):
            await read.__aexit__(None, None, None)


# Poison


async def test_a_hold_that_dies_poisons_and_a_body_that_succeeds_ends_it() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _), fleet.direct() as other:
        catalog = process.catalog()
        dead = await other.catalog(lease_duration=1).write.acquire()
        fleet.clock.jump(2)
        assert not dead.valid
        async with catalog.read as reading:
            assert reading.poisoned
        with pytest.raises(ZeroDivisionError):
            await failing(catalog.write)
        async with catalog.write as writing:
            assert writing.poisoned
        async with catalog.write as writing:
            assert not writing.poisoned


@pytest.mark.parametrize(("poison", "found"), [(False, False), (True, True), (Poison.KEEP, False), (Poison.SET, True)])
async def test_a_writer_may_say_what_it_leaves(poison: bool | Poison, found: bool) -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _):
        guard = await process.catalog().write.acquire()
        await guard.release(poison)
        async with process.catalog().write as writing:
            assert writing.poisoned is found


# Downgrade


async def test_a_downgrade_leaves_no_gap_and_keeps_the_fence() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _), fleet.direct() as other:
        writing = await process.catalog().write.acquire()
        waiter = asyncio.create_task(other.catalog().write.acquire())
        await fleet.clock.settle()
        token = writing.fencing_token
        reading = await writing.downgrade()
        assert isinstance(reading, ReadGuard)
        assert reading.generation == token
        assert not writing.valid
        with pytest.raises(LockNotOwnedError):
            await writing.downgrade()
        await writing.release()
        await fleet.clock.settle()
        assert reading.valid
        assert not waiter.done()
        await reading.release()
        await fleet.clock.settle()
        await (await waiter).release()


async def test_a_downgrade_spends_the_write_guard_before_it_is_sent() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        writing = await process.catalog().write.acquire()
        wire.open_.clear()
        downgrade = asyncio.create_task(writing.downgrade())
        await fleet.clock.settle()
        assert not writing.valid
        wire.open_.set()
        await (await downgrade).release()


async def test_the_block_of_a_downgraded_writer_ends_the_reader() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _):
        async with process.catalog().write as writing:
            reading = await writing.downgrade()
            assert (await fleet.state()).readers
        assert not reading.valid
        assert empty(await fleet.state())
        async with process.catalog().write as writing:
            await (await writing.downgrade()).release()
        with pytest.raises(LockNotOwnedError):
            await reading_until(process.catalog().write, fleet.clock.advance(61))


@pytest.mark.parametrize("how", ["lost", "hung", "late"])
async def test_a_downgrade_in_doubt_is_taken_back(how: str) -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        writing = await process.catalog(lease_duration=4).write.acquire()

        def downgrades(command: Command) -> bool:
            return isinstance(command, Downgrade)

        if how == "lost":
            wire.loses = downgrades
        elif how == "hung":
            wire.hangs = downgrades
        else:
            wire.going = 4.5
        with pytest.raises(BackendError):
            await fleet.passing(writing.downgrade())
        wire.going = 0
        await fleet.clock.advance(6)
        assert empty(await fleet.state())
        assert not writing.valid


async def test_a_downgrade_whose_answer_comes_too_late_is_taken_back() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        writing = await process.catalog().write.acquire()
        wire.open_.clear()
        downgrade = asyncio.create_task(writing.downgrade())
        await fleet.clock.settle()
        # This process was stopped, and goes on when the lease has a moment left in the store.
        fleet.clock.jump(59.6)
        wire.open_.set()
        await fleet.clock.settle()
        with pytest.raises(LockNotOwnedError):
            await downgrade
        await fleet.clock.settle()
        assert empty(await fleet.state())


async def test_a_downgrade_of_what_had_ended_is_a_loss() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _):
        writing = await process.catalog().write.acquire()
        fleet.store.at_once("rwlock:x", Force(), CLAIM)
        with pytest.raises(LockNotOwnedError):
            await writing.downgrade()
        assert writing.lost
        assert empty(await fleet.state())


# What kind of thing it is


def test_guards_are_siblings() -> None:
    kinds = [ReadGuard, WriteGuard, LockHandle]
    assert [kind.__bases__ for kind in kinds] == [(Guard,)] * 3


async def test_thousands_of_readers_cost_each_the_same() -> None:
    fleet = Fleet()
    async with fleet.direct() as process:
        catalog = process.catalog()
        guards = [await asyncio.create_task(catalog.read.acquire()) for _ in range(3000)]
        assert len((await fleet.state()).readers) == 3000
        for guard in guards:
            await guard.release()
        assert empty(await fleet.state())
        assert not process.crew.holds("rwlock:x")


async def test_what_is_dropped_again_and_again_is_forgotten() -> None:
    fleet = Fleet()
    async with fleet.direct() as process:
        for _ in range(3000):
            await asyncio.create_task(process.lock(lease_duration=1).acquire())
            fleet.clock.jump(2)
        for number in range(3000):
            await process.lock(f"n{number}", lease_duration=1).acquire()
            fleet.clock.jump(2)
        gc.collect()
        leases = [thing for thing in gc.get_objects() if type(thing).__name__ == "Lease"]
        assert len(leases) < 1500
