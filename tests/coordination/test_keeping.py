"""Leases that are kept alive, and how their owners learn of a loss."""

import asyncio
import gc
import logging
from typing import Any

import pytest

from grelmicro_fastapi.coordination.state import CLAIM, Command, Force, Renew
from grelmicro_fastapi.coordination.view import View
from grelmicro_fastapi.errors import LockNotOwnedError
from tests.coordination.crews import Fleet, Wire, empty, hold

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("wires")]

KEPT: dict[str, Any] = {"lease_duration": 3, "keep_alive": True}


def renews(command: Command) -> bool:
    return isinstance(command, Renew)


async def test_a_body_of_five_leases_keeps_its_lock() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire), fleet.direct() as other:
        waiter = None
        async with process.catalog(**KEPT).write as guard:
            waiter = asyncio.create_task(other.catalog().write.acquire())
            for _ in range(150):
                await fleet.clock.advance(0.1)
                assert guard.valid
                assert not waiter.done()
            assert 15 <= wire.sent(Renew) <= 18
        await (await waiter).release()
        await fleet.clock.advance(5)
        assert wire.sent(Renew) <= 18


async def test_without_keep_alive_nothing_is_renewed() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        guard = await process.lock(lease_duration=3).acquire()
        await fleet.clock.advance(3)
        assert not guard.valid
        assert wire.sent(Renew) == 0


async def test_a_downgraded_guard_is_kept_too() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _), process.catalog(**KEPT).write as writing:
        reading = await writing.downgrade()
        await fleet.clock.advance(15)
        reading.check()


@pytest.mark.parametrize("trouble", ["down", "hangs", "loses"])
async def test_trouble_is_sat_out_until_the_deadline(trouble: str) -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        guard = await process.lock(**KEPT).acquire()
        for _ in range(3):
            set_trouble(wire, trouble, True)
            await fleet.clock.advance(1.7 if trouble != "hangs" else 1)
            set_trouble(wire, trouble, False)
            await fleet.clock.advance(3)
            assert guard.valid
        set_trouble(wire, trouble, True)
        watching = asyncio.create_task(guard.wait_lost())
        await fleet.clock.advance(3)
        assert guard.lost
        assert watching.done()
        with pytest.raises(LockNotOwnedError):
            guard.check()
        set_trouble(wire, trouble, False)


def set_trouble(wire: Wire, kind: str, on: bool) -> None:
    if kind == "down":
        wire.down = on
    else:
        setattr(wire, kind, renews if on else lambda command: False)


async def test_a_renewal_that_hangs_leaves_time_for_another_one() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        guard = await process.lock(**KEPT).acquire()
        hung = 0

        def first(command: Command) -> bool:
            nonlocal hung
            hung += renews(command)
            return renews(command) and hung == 1

        wire.hangs = first
        for _ in range(60):
            await fleet.clock.advance(0.1)
            assert guard.valid
        assert hung > 2
        await guard.release()


async def test_a_long_lease_that_hangs_does_not_cost_a_short_one_its_time() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        long = await process.lock("long", lease_duration=60, keep_alive=True).acquire()
        slow = True
        wire.hangs = lambda command: slow and isinstance(command, Renew) and command.ttl == 60_000
        # Its renewal is under way, and will be for five seconds.
        await fleet.clock.advance(20)
        short = await process.lock("short", lease_duration=1.2, keep_alive=True).acquire()
        for _ in range(50):
            await fleet.clock.advance(0.1)
            assert short.valid
        slow = False
        await fleet.clock.advance(2)
        assert long.valid
        await short.release()
        await long.release()


async def test_a_renewal_counts_from_before_it_was_sent() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        guard = await process.catalog(**KEPT).write.acquire()
        wire.coming = 0.9
        await fleet.clock.advance(2.2)
        wire.hangs = renews
        while guard.valid:
            assert (await fleet.state()).writer
            await fleet.clock.advance(0.01)
        assert guard.lost


async def test_renewals_have_a_lane_of_their_own() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        guard = await process.lock(**KEPT).acquire()
        wire.hangs = lambda command: not isinstance(command, Renew)
        call = asyncio.create_task(process.lock("y").acquire(timeout=30))
        await fleet.clock.advance(4.5)
        assert guard.valid
        wire.hangs = lambda command: False
        await fleet.clock.advance(1)
        assert call.exception()
        await guard.release()


async def test_renewals_that_fall_due_together_travel_together() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        guards = [await process.lock(f"n{n}", lease_duration=30, keep_alive=True).acquire() for n in range(200)]
        wire.batches.clear()
        await fleet.clock.advance(30)
        assert wire.sent(Renew) >= 400
        assert len(wire.batches) <= 20
        assert max(len(batch) for batch in wire.batches) <= 128
        assert all(guard.valid for guard in guards)
        await asyncio.gather(*(guard.release() for guard in guards))


async def test_what_the_store_says_is_gone_is_lost_at_once(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        guard = await process.lock(**KEPT).acquire()
        watching = asyncio.create_task(guard.wait_lost())
        fleet.store.at_once("lock:x", Force(), CLAIM)
        await fleet.clock.advance(1.1)
        assert guard.lost
        assert await watching
        assert "lost 'x'" in caplog.text
        assert guard.lease.token not in caplog.text
        # There is nothing to release: nobody is asked again.
        sent = wire.sent()
        for _ in range(2):
            with pytest.raises(LockNotOwnedError):
                await guard.release()
        await fleet.clock.advance(10)
        assert wire.sent() == sent


async def test_a_guard_that_is_dropped_is_renewed_no_more(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire), fleet.direct() as other:

        async def careless() -> None:
            await process.catalog(**KEPT).write.acquire()

        await asyncio.create_task(careless())
        gc.collect()
        await fleet.clock.advance(3.1)
        assert wire.sent(Renew) == 0
        assert "dropped without release" in caplog.text
        async with other.catalog().write as guard:
            assert guard.poisoned


async def test_a_body_that_blocks_the_loop_past_its_lease_finds_its_guard_invalid() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _):
        guard = await process.lock(**KEPT).acquire()
        fleet.clock.jump(6)
        with pytest.raises(LockNotOwnedError):
            guard.check()
        await fleet.clock.settle()
        assert guard.lost
        assert not guard.valid


async def test_at_the_longest_hold_renewal_stops_the_guard_is_lost_and_others_enter() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _), fleet.direct() as other:
        guard = await process.catalog(max_hold=10, **KEPT).read.acquire()
        writer = asyncio.create_task(other.catalog().write.acquire())
        await fleet.clock.advance(9.9)
        assert guard.valid
        assert not writer.done()
        await fleet.clock.advance(0.11)
        assert guard.lost
        await fleet.clock.advance(0.3)
        await (await writer).release()


async def test_the_longest_hold_bounds_a_lease_that_is_longer() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _), fleet.direct() as other:
        guard = await process.lock(max_hold=2).acquire()
        with pytest.raises(LockNotOwnedError):
            await extending(guard, fleet)
        assert guard.lost
        await (await fleet.passing(other.lock().acquire())).release()
        assert fleet.clock.now() < 1002.5


async def extending(guard: Any, fleet: Fleet) -> None:
    for _ in range(30):
        await guard.extend()
        await fleet.clock.advance(0.1)


# on_lost="cancel"


@pytest.mark.parametrize("keep_alive", [True, False])
async def test_the_owner_is_cancelled_before_its_lease_can_have_ended(keep_alive: bool) -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        wire.hangs = renews
        stopped: list[float] = []

        async def body(view: View[Any]) -> None:
            async with view:
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    stopped.append(fleet.clock.now())
                    assert (await fleet.store.peek("lock:x")).state.writer

        lock = process.lock(lease_duration=3, keep_alive=keep_alive, on_lost="cancel")
        task = asyncio.create_task(body(lock))
        await fleet.clock.advance(4)
        assert 1002.9 < stopped[0] < 1003
        with pytest.raises(LockNotOwnedError, match="has ended"):
            await task
        assert task.cancelling() == 0


async def test_without_that_wish_nobody_is_cancelled() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        wire.hangs = renews
        until = asyncio.Event()
        task = asyncio.create_task(hold(process.lock(**KEPT), until))
        await fleet.clock.advance(10)
        assert not task.done()
        until.set()
        with pytest.raises(LockNotOwnedError):
            await task


async def test_a_foreign_cancellation_at_the_same_time_wins() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        for before in (True, False):
            wire.hangs = renews
            task = asyncio.create_task(hold(process.lock(on_lost="cancel", **KEPT), asyncio.Event()))
            await fleet.clock.settle()
            if before:
                fleet.clock.call_later(2.968, task.cancel)
            lease = next(process.crew.held())
            watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            lease.watchers = (*lease.watchers, watcher)
            if not before:
                watcher.add_done_callback(lambda _, task=task: task.cancel())
            await fleet.clock.advance(4)
            with pytest.raises(asyncio.CancelledError):
                await task
            wire.hangs = lambda command: False
            await fleet.clock.advance(1)


async def test_a_body_that_was_cancelled_before_and_did_not_heed_it_still_learns_of_its_loss() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        wire.hangs = renews

        async def stubborn() -> None:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                await hold(process.lock(on_lost="cancel", **KEPT), asyncio.Event())

        task = asyncio.create_task(stubborn())
        await fleet.clock.settle()
        task.cancel()
        await fleet.clock.advance(4)
        with pytest.raises(LockNotOwnedError):
            await task


async def test_a_body_that_does_not_heed_the_cancellation_raises_all_the_same_and_is_itself_again() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        wire.hangs = renews

        async def stubborn(error: type[Exception] | None) -> None:
            async with process.lock(on_lost="cancel", **KEPT) as guard:
                try:
                    await asyncio.get_running_loop().create_future()
                except asyncio.CancelledError:
                    assert guard.lost
                    if error:
                        raise error from None

        for raised, expected in ((None, LockNotOwnedError), (KeyError, KeyError)):
            task = asyncio.create_task(stubborn(raised))
            await fleet.clock.advance(4)
            with pytest.raises(expected):
                await task
            assert task.cancelling() == 0


async def test_a_timeout_around_the_block_is_not_confused_by_our_cancellation() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        wire.hangs = renews
        caught: list[BaseException] = []

        async def body() -> None:
            async with asyncio.timeout(3600):
                try:
                    await hold(process.lock(on_lost="cancel", **KEPT), asyncio.Event())
                except LockNotOwnedError as error:
                    caught.append(error)
                await asyncio.sleep(0)

        task = asyncio.create_task(body())
        await fleet.clock.advance(4)
        await task
        assert len(caught) == 1


async def test_whoever_learns_of_the_loss_by_asking_is_not_cancelled_as_well() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _):

        async def asks_itself() -> None:
            async with process.lock(on_lost="cancel", lease_duration=9) as guard:
                fleet.store.at_once("lock:x", Force(), CLAIM)
                with pytest.raises(LockNotOwnedError):
                    await guard.extend()
                await asyncio.sleep(0)

        with pytest.raises(LockNotOwnedError):
            await asyncio.create_task(asks_itself())
        task = asyncio.create_task(hold(process.lock(on_lost="cancel"), asyncio.Event()))
        await fleet.clock.settle()
        fleet.store.at_once("lock:x", Force(), CLAIM)
        with pytest.raises(LockNotOwnedError):
            await next(process.crew.held()).extend()
        with pytest.raises(LockNotOwnedError):
            await task


async def test_what_is_released_is_not_remembered_until_its_renewal_would_have_been_due() -> None:
    fleet = Fleet()
    async with fleet.direct() as process:
        lock = process.lock(lease_duration=60, keep_alive=True)
        for _ in range(2000):
            async with lock:
                pass
        assert len(process.crew.keeper._charges) <= 512


async def test_nothing_is_renewed_after_the_end() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        guard = await process.lock(**KEPT).acquire()
        wire.coming = 0.5
        await fleet.clock.advance(1.2)
        await fleet.passing(process.crew.close())
        sent = wire.sent()
        await fleet.clock.advance(10)
        assert wire.sent() == sent
        assert guard.lost
        assert not empty(fleet.memory._states.kept["lock:x"])


async def test_losses_are_logged_with_the_name_and_nothing_secret(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        wire.hangs = renews
        guard = await process.lock("orders", **KEPT).acquire()
        with caplog.at_level(logging.INFO):
            await fleet.clock.advance(4)
        (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert record.__dict__["lock_name"] == "orders"
        assert record.__dict__["event"] == "lock.lost"
        assert guard.lease.token not in caplog.text
