"""`timeout=` bounds the whole call, whatever the store does, and nothing stays behind a call that ended."""

import asyncio
import logging
import math
from collections.abc import Awaitable
from typing import Any

import pytest

from grelmicro_fastapi.coordination.state import GRAVE, Acquire, Command, Leave, Release, Undo
from grelmicro_fastapi.errors import BackendError, LockTimeoutError, WouldBlockError
from tests.coordination.crews import Fleet, Wire, acquires, empty, hold

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("wires")]


@pytest.mark.parametrize("timeout", [-1, math.nan, math.inf])
async def test_a_wait_that_is_none_is_refused_though_the_lock_is_free_at_once(timeout: float) -> None:
    fleet = Fleet()
    async with fleet.direct() as process:
        with pytest.raises(ValueError, match="timeout="):
            await process.lock().acquire(timeout=timeout)
        assert not await process.lock().locked()


@pytest.mark.parametrize("timeout", [-1, -0.001, math.nan, math.inf, -math.inf])
async def test_a_timeout_is_none_or_a_number_of_seconds_from_zero_up(timeout: float) -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        with pytest.raises(ValueError, match="timeout="):
            await process.lock().acquire(timeout=timeout)
        assert wire.sent() == 0


async def test_zero_is_one_attempt_that_leaves_no_trace() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire), fleet.direct() as other:
        free = await process.lock().acquire(timeout=0)
        await free.release()
        held = await other.lock().acquire()
        before = wire.sent()
        with pytest.raises(LockTimeoutError):
            await process.lock().acquire(timeout=0)
        with pytest.raises(WouldBlockError):
            await process.lock().acquire_nowait()
        assert wire.sent() == before + 2
        assert not (await fleet.state("lock:x")).seats
        await held.release()


async def test_whoever_was_refused_until_the_end_learns_that_it_is_held_and_when_to_try_again() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _), fleet.direct() as other:
        held = await other.lock(lease_duration=30).acquire()
        with pytest.raises(LockTimeoutError, match="'x' stayed held") as caught:
            await fleet.passing(process.lock().acquire(timeout=2))
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.retry_after is not None
        assert 25 < caught.value.retry_after <= 30
        await fleet.clock.settle()
        assert not (await fleet.state("lock:x")).seats
        await held.release()


async def test_those_who_wait_behind_another_writer_of_this_process_learn_the_same() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _), fleet.direct() as other:
        held = await other.lock().acquire()
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(refused(process.lock().acquire(timeout=2))) for _ in range(5)]
            await fleet.clock.advance(2.1)
        assert [type(call.result()) for call in calls] == [LockTimeoutError] * 5
        await held.release()
        # The same where it is held in this very process, and nobody here had to ask.
        until = asyncio.Event()
        holder = asyncio.create_task(hold(process.lock(), until))
        await fleet.clock.settle()
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(refused(process.lock().acquire(timeout=2))) for _ in range(5)]
            await fleet.clock.advance(2.1)
        assert [type(call.result()) for call in calls] == [LockTimeoutError] * 5
        until.set()
        await holder


@pytest.mark.parametrize("timeout", [0.5, 3, 7])
async def test_a_hung_store_does_not_keep_a_caller_past_the_timeout(timeout: float) -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        wire.hangs = acquires
        call = asyncio.create_task(refused(process.lock().acquire(timeout=timeout)))
        await fleet.clock.advance(min(timeout, 5) - 0.01)
        assert not call.done()
        await fleet.clock.advance(0.02)
        # A newcomer is not kept longer than one call to the store may take.
        assert type(await call) is BackendError


async def test_one_attempt_is_bounded_by_the_time_that_a_call_may_take_and_by_the_lease() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        wire.hangs = acquires
        for lease, bound in ((60, 5), (2, 2)):
            call = asyncio.create_task(refused(process.lock(lease_duration=lease).acquire(timeout=0)))
            await fleet.clock.advance(bound - 0.01)
            assert not call.done()
            await fleet.clock.advance(0.02)
            assert type(await call) is BackendError
            await fleet.clock.advance(6)


async def test_a_store_that_is_down_is_no_holder() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        wire.down = True
        for timeout in (None, 0, 1):
            error = await fleet.passing(refused(process.lock().acquire(timeout=timeout)))
            assert type(error) is BackendError


async def test_each_of_many_callers_gets_an_error_of_its_own() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        wire.down = True
        errors = await asyncio.gather(*(refused(process.catalog().read.acquire()) for _ in range(3)))
        errors += await asyncio.gather(*(refused(process.lock().acquire()) for _ in range(3)))
        assert len({id(error) for error in errors}) == 6
        errors[0].add_note("only mine")
        assert not hasattr(errors[1], "__notes__")


async def test_a_waiter_who_was_heard_sits_a_short_outage_out_and_a_long_one_not() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire), fleet.direct() as other:
        held = await other.lock().acquire()
        waiter = asyncio.create_task(process.lock().acquire())
        await fleet.clock.advance(0.5)
        wire.down = True
        await fleet.clock.advance(4)
        assert not waiter.done()
        wire.down = False
        await fleet.clock.advance(2)
        await held.release()
        await fleet.clock.settle()
        guard = await waiter
        waiters = [asyncio.create_task(refused(other.lock().acquire())) for _ in range(2)]
        waiters += [asyncio.create_task(refused(process.lock().acquire())) for _ in range(2)]
        await fleet.clock.advance(0.5)
        wire.down = True
        await fleet.clock.advance(8)
        assert [waiter.done() for waiter in waiters] == [False, False, True, True]
        assert [type(await waiter) for waiter in waiters[2:]] == [BackendError] * 2
        wire.down = False
        await guard.release()
        await fleet.clock.advance(1)
        assert [await waiter for waiter in waiters[:2]] == [None, None]


async def test_what_is_granted_after_the_call_has_ended_is_taken_back() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        wire.coming = 3
        for timeout in (1, 2):
            assert type(await fleet.passing(refused(process.catalog().write.acquire(timeout=timeout)))) is BackendError
            await fleet.clock.advance(7)
            state = await fleet.state()
            assert empty(state)
            assert not state.poisoned


async def test_a_grant_with_nothing_left_of_its_lease_is_refused_and_taken_back() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        wire.coming = 2
        for timeout in (None, 30):
            catalog = process.catalog(lease_duration=2)
            error = await fleet.passing(refused(catalog.write.acquire(timeout=timeout)))
            assert isinstance(error, BackendError)
            assert "too late" in str(error)
            await fleet.clock.advance(3)
            assert empty(await fleet.state())


@pytest.mark.parametrize("lease", [0.001, 0.002, 0.0025])
async def test_a_lease_shorter_than_the_drift_margin_is_never_handed_out(lease: float) -> None:
    fleet = Fleet()
    async with fleet.direct() as process:
        for acquire in (
            process.catalog(lease_duration=lease).write.acquire,
            process.lock(lease_duration=lease).acquire,
        ):
            try:
                guard = await acquire()
            except BackendError:
                continue
            assert guard.valid
            await guard.release()
        assert empty(await fleet.state())


async def test_an_answer_that_is_lost_is_no_grant_and_its_lease_and_seat_go() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire), fleet.direct() as other:
        wire.loses = acquires
        for timeout in (None, 0, 1):
            assert isinstance(await refused(process.catalog().write.acquire(timeout=timeout)), BackendError)
            await fleet.clock.settle()
            state = await fleet.state()
            assert empty(state)
            assert not state.poisoned
        held = await other.catalog().write.acquire()
        assert isinstance(await refused(process.catalog().write.acquire()), BackendError)
        await fleet.clock.settle()
        assert not (await fleet.state()).seats
        await held.release()


async def test_an_undo_is_tried_until_the_store_takes_it() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        wire.loses = lambda command: isinstance(command, Acquire | Undo)
        assert isinstance(await refused(process.catalog().write.acquire()), BackendError)
        wire.down = True
        await fleet.clock.advance(20)
        assert (await fleet.state()).writer
        wire.down = False
        wire.loses = lambda command: False
        await fleet.clock.advance(1)
        state = await fleet.state()
        assert empty(state)
        assert not state.poisoned


async def test_an_undo_is_given_up_when_the_attempt_could_not_land_any_more(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        wire.loses = acquires
        with caplog.at_level(logging.WARNING):
            assert isinstance(await refused(process.lock(lease_duration=1).acquire()), BackendError)
            wire.down = True
            await fleet.clock.advance(GRAVE / 1000 - 1)
            assert process.crew.courier._tasks
            await fleet.clock.advance(3)
        assert not process.crew.courier._tasks
        assert "Undo" in caplog.text
        assert ":task:" not in caplog.text


async def test_close_waits_for_undos_but_not_for_ever() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        wire.coming = 1
        call = asyncio.create_task(process.catalog().write.acquire())
        await fleet.clock.advance(0.5)
        call.cancel()
        await fleet.clock.settle()
        closing = asyncio.create_task(process.crew.close())
        await fleet.clock.advance(0.1)
        assert not closing.done()
        await fleet.clock.advance(2)
        assert closing.done()
        assert empty(await fleet.state())
    async with fleet.process() as (process, wire):
        wire.hangs = acquires
        call = asyncio.create_task(refused(process.catalog("y").write.acquire()))
        await fleet.clock.settle()
        closing = asyncio.create_task(process.crew.close())
        await fleet.clock.advance(4.9)
        assert not closing.done()
        await fleet.clock.advance(0.2)
        assert closing.done()
        await call


async def test_after_the_end_nothing_is_sent_and_nobody_hangs() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        guard = await process.lock().acquire()
        await process.crew.close()
        sent = wire.sent()
        with pytest.raises(BackendError, match="closed"):
            await guard.release()
        with pytest.raises(BackendError, match="closed"):
            await process.lock().locked()
        await fleet.clock.advance(10)
        assert wire.sent() == sent
        assert not process.crew.courier._tasks


async def test_reading_a_state_is_bounded_too() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        wire.open_.clear()
        call = asyncio.create_task(process.lock().locked())
        await fleet.clock.advance(5.1)
        with pytest.raises(BackendError, match="did not answer"):
            await call
        wire.open_.set()
        call = asyncio.create_task(process.lock().locked())
        wire.down = True
        with pytest.raises(BackendError, match="down"):
            await call


@pytest.mark.parametrize("kind", [Leave, Release])
async def test_what_must_arrive_is_sent_again(kind: type[Command]) -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire), fleet.direct() as other:
        held = await other.lock().acquire()
        waiter = asyncio.create_task(process.lock().acquire(timeout=1))
        await fleet.clock.settle()
        hang_once(wire, kind)
        await fleet.clock.advance(1.1)
        assert isinstance(waiter.exception(), LockTimeoutError)
        await held.release()
        guard = await fleet.passing(process.lock().acquire())
        error = await fleet.passing(refused(guard.release()))
        assert (error is None) == (kind is Leave)
        await fleet.clock.advance(8)
        assert empty(await fleet.state("lock:x"))


async def test_a_late_leave_does_not_take_the_seat_of_those_who_came_since() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire), fleet.direct() as other:
        held = await other.lock().acquire()
        with pytest.raises(LockTimeoutError):
            await fleet.passing(process.lock().acquire(timeout=0.1), step=0.01)
        await fleet.clock.settle()
        waiter = asyncio.create_task(process.lock().acquire(timeout=0.1))
        await fleet.clock.settle()
        wire.down = True
        await fleet.clock.advance(0.11)
        assert waiter.done()
        wire.down = False
        since = asyncio.create_task(process.lock().acquire())
        await fleet.clock.settle()
        for _ in range(20):
            await fleet.clock.advance(0.1)
            assert len((await fleet.state("lock:x")).seats) == 1
        await held.release()
        await fleet.clock.settle()
        await (await since).release()
        assert isinstance(waiter.exception(), LockTimeoutError)


def hang_once(wire: Wire, kind: type[Command]) -> None:
    """The next command of that kind is lost on the way."""

    def hangs(command: Command) -> bool:
        if isinstance(command, kind):
            wire.hangs = lambda command: False
            return True
        return False

    wire.hangs = hangs


async def refused(call: Awaitable[Any]) -> Exception | None:
    """The error that a call ends with. What it acquires all the same is given back."""
    try:
        guard = await call
    except Exception as error:
        return error
    if guard is not None:
        await guard.release()
    return None
