"""Who waits, who is woken, and what waiting costs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from grelmicro_fastapi.coordination import Lock, waiting
from grelmicro_fastapi.coordination.state import Leave
from grelmicro_fastapi.coordination.store import Snapshot, Store, Woken
from grelmicro_fastapi.coordination.view import View
from grelmicro_fastapi.errors import BackendError, DrainingError, LockTimeoutError, QueueFullError
from grelmicro_fastapi.providers.memory import MemoryProvider
from tests.coordination.crews import Fleet, Process, Wire, empty, hold

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("wires")]


async def test_writers_of_one_process_enter_first_come_first_served() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _), fleet.direct() as other:
        held = await other.lock().acquire()
        order: list[int] = []

        async def enter(number: int) -> None:
            async with process.lock():
                order.append(number)

        tasks = [asyncio.create_task(enter(number)) for number in range(20)]
        await fleet.clock.settle()
        await held.release()
        await asyncio.gather(*tasks)
        assert order == list(range(20))


async def test_however_many_are_cancelled_in_one_step_the_lock_lives_on() -> None:
    async with MemoryProvider() as memory:
        lock = Lock("x", backend=memory)

        async def enter(number: int) -> None:
            async with lock:
                await asyncio.sleep(0)
                if number == 5:
                    raise KeyError(number)

        async def all_enter() -> None:
            async with asyncio.timeout(20), asyncio.TaskGroup() as group:
                for number in range(1_000):
                    group.create_task(enter(number))

        with pytest.raises(ExceptionGroup) as raised:
            await all_enter()
        assert [type(error) for error in raised.value.exceptions] == [KeyError]
        await (await lock.acquire(timeout=5)).release()


async def test_who_waits_behind_one_that_was_granted_too_late_is_told_that_it_was_held() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire), fleet.direct() as other:
        held = await other.lock().acquire()
        first = asyncio.create_task(process.lock().acquire())
        second = asyncio.create_task(process.lock().acquire(timeout=1.0))
        await fleet.clock.settle()
        wire.coming = 0.2
        await fleet.clock.advance(0.7)
        await held.release()
        await fleet.clock.settle()
        first.cancel()
        again = asyncio.create_task(other.lock().acquire())
        await fleet.clock.advance(0.5)
        with pytest.raises(LockTimeoutError):
            await second
        again.cancel()
        await asyncio.gather(first, again, return_exceptions=True)
        wire.coming = 0.0
        await fleet.clock.advance(1)


async def test_readers_that_wait_here_enter_together() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire), fleet.direct() as other:
        held = await other.catalog().write.acquire()
        until = asyncio.Event()
        tasks = [asyncio.create_task(hold(process.catalog().read, until)) for _ in range(50)]
        await fleet.clock.settle()
        wire.batches.clear()
        await held.release()
        await fleet.clock.settle()
        assert len((await fleet.state()).readers) == 50
        assert len(wire.batches) == 1
        assert not (await fleet.state()).seats
        until.set()
        await asyncio.gather(*tasks)
        assert empty(await fleet.state())


async def test_readers_that_found_out_by_asking_enter_together_too() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire), fleet.direct() as other:
        wire.deaf = process.crew.waiting.polls = True
        held = await other.catalog().write.acquire()
        until = asyncio.Event()
        tasks = [asyncio.create_task(hold(process.catalog().read, until)) for _ in range(50)]
        await fleet.clock.settle()
        # A writer behind them must not slip in between the first one and the rest.
        writer = asyncio.create_task(hold(other.catalog().write, until))
        await fleet.clock.settle()
        wire.batches.clear()
        await held.release()
        await fleet.clock.advance(0.12)
        assert len((await fleet.state()).readers) == 50
        assert len(wire.batches) <= 3
        until.set()
        await asyncio.gather(*tasks, writer)


@pytest.mark.parametrize("readers", [1, 40])
@pytest.mark.parametrize("writers", [0, 40])
async def test_whoever_waits_idly_asks_at_most_once_a_second_for_each_mode(readers: int, writers: int) -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire), fleet.direct() as other:
        held = await other.catalog(lease_duration=600).write.acquire()
        done = asyncio.Event()
        done.set()
        tasks = [asyncio.create_task(hold(process.catalog().read, done)) for _ in range(readers)]
        tasks += [asyncio.create_task(hold(process.catalog().write, done)) for _ in range(writers)]
        await fleet.clock.advance(3)
        wire.batches.clear()
        await fleet.clock.advance(60)
        assert 40 <= wire.sent() <= 60 * (1 + bool(writers))
        assert len((await fleet.state()).seats) == 1 + bool(writers)
        await held.release()
        await asyncio.gather(*tasks)
        await fleet.clock.settle()
        assert empty(await fleet.state())


async def test_the_last_who_leaves_takes_the_place_with_him() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire), fleet.direct() as other:
        held = await other.catalog().write.acquire()
        for view in (process.catalog().read, process.catalog().write):
            tasks = [asyncio.create_task(view.acquire()) for _ in range(3)]
            await fleet.clock.settle()
            assert len((await fleet.state()).seats) == 1
            for task in tasks:
                task.cancel()
            await fleet.clock.settle()
            assert not (await fleet.state()).seats
        assert wire.sent(Leave) == 2
        assert not process.crew.waiting.queues
        await held.release()


@pytest.mark.parametrize("polls", [False, True])
async def test_a_lost_wake_is_found_out_by_asking(polls: bool) -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire), fleet.direct() as other:
        wire.deaf = True
        process.crew.waiting.polls = polls
        held = await other.lock().acquire()
        waiter = asyncio.create_task(process.lock(retry_interval=0.2, retry_jitter=0.5).acquire())
        await fleet.clock.settle()
        await held.release()
        await fleet.clock.advance(0.31 if polls else 1.01)
        await (await waiter).release()


async def test_nobody_sleeps_past_the_lease_that_blocks_him() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire), fleet.direct() as other:
        wire.deaf = True
        await other.lock(lease_duration=0.4).acquire()
        waiter = asyncio.create_task(process.lock().acquire())
        await fleet.clock.advance(0.402)
        await (await waiter).release()


async def test_after_a_broken_channel_everybody_asks_again() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire), fleet.direct() as other:
        held = [await other.lock("a").acquire(), await other.catalog("b").write.acquire()]
        tasks = [asyncio.create_task(process.lock("a").acquire())]
        tasks += [asyncio.create_task(process.catalog("b").read.acquire()) for _ in range(3)]
        await fleet.clock.settle()
        wire.deaf = True
        for guard in held:
            await guard.release()
        await fleet.clock.settle()
        assert not any(task.done() for task in tasks)
        process.crew.waiting.wake(None)
        await fleet.clock.settle()
        for task in tasks:
            await task.result().release()


class Mute(Wire):
    """A store that cannot tell anybody."""

    trouble: Exception | None = None

    async def listen(self, woken: Woken) -> None:
        if self.trouble:
            raise self.trouble


@pytest.mark.parametrize("trouble", [None, BackendError("not permitted"), ValueError("a driver's bug")])
async def test_where_no_wake_can_be_heard_waiters_poll(
    trouble: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet()
    wire = Mute(fleet.memory._store(), fleet.clock)
    wire.trouble = trouble
    async with Process(wire, fleet.clock) as process, fleet.direct() as other:
        held = await other.lock().acquire()
        waiter = asyncio.create_task(process.lock(retry_interval=0.1).acquire())
        await fleet.clock.settle()
        assert ("poll" in caplog.text) == bool(trouble)
        await held.release()
        await fleet.clock.advance(0.12)
        await (await waiter).release()


async def test_a_queue_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "CROWD", 5)
    fleet = Fleet()
    async with fleet.process() as (process, _), fleet.direct() as other:
        held = await other.lock().acquire()
        tasks = [asyncio.create_task(process.lock().acquire()) for _ in range(5)]
        await fleet.clock.settle()
        with pytest.raises(QueueFullError, match="'x'"):
            await process.lock().acquire()
        # Another name, and one attempt that does not wait, are not concerned.
        await (await process.lock("y").acquire()).release()
        tasks.pop().cancel()
        await fleet.clock.settle()
        tasks.append(asyncio.create_task(process.lock().acquire()))
        await fleet.clock.settle()
        await held.release()
        for task in tasks:
            await (await task).release()


async def test_a_release_and_the_next_request_of_this_process_travel_together() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire):
        done = asyncio.Event()
        done.set()
        tasks = [asyncio.create_task(hold(process.lock(), done)) for _ in range(10)]
        await asyncio.gather(*tasks)
        # The first asks, and the second is refused once.
        assert wire.sent() <= 3 * 10
        assert len(wire.batches) <= 2 * 10 + 1
        assert not (await fleet.state("lock:x")).seats


async def test_who_is_known_to_the_store_does_not_ask_before_his_turn() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, wire), fleet.process() as (another, _):
        held = await process.lock().acquire()
        first = asyncio.create_task(another.lock().acquire())
        await fleet.clock.settle()
        second = asyncio.create_task(process.lock().acquire())
        await fleet.clock.settle()
        before = wire.sent()
        await held.release()
        await (await first).release()
        await (await second).release()
        # The release of the first hold, one request when it was called, and the release of the second.
        assert wire.sent() == before + 3


async def test_a_call_that_finds_its_first_one_gone_is_answered_by_the_next() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _), fleet.direct() as other:
        views: list[View[Any]] = [process.lock(), process.catalog().read]
        for view in views:
            held = [await other.lock().acquire(), await other.catalog().write.acquire()]
            tasks = [asyncio.create_task(view.acquire()) for _ in range(3)]
            await fleet.clock.settle()
            for guard in held:
                await guard.release()
            # The call is on its way, and the one who would ask has not yet noticed that it was cancelled.
            tasks[0].cancel()
            await fleet.clock.settle()
            assert tasks[1].done()
            for task in tasks[1:]:
                await (await task).release()


async def test_draining_sends_everybody_away_and_lets_holders_be() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _), fleet.direct() as other:
        held = await other.lock().acquire()
        mine = await process.lock("mine").acquire()
        tasks = [asyncio.create_task(process.lock().acquire(timeout=timeout)) for timeout in (None, 5, 600)]
        await fleet.clock.settle()
        process.crew.drain()
        await fleet.clock.settle()
        errors = [task.exception() for task in tasks]
        assert [type(error) for error in errors] == [DrainingError] * 3
        assert len({id(error) for error in errors}) == 3
        assert not (await fleet.state("lock:x")).seats
        for timeout in (None, 0, 5):
            with pytest.raises(DrainingError):
                await process.lock("free").acquire(timeout=timeout)
        await mine.extend()
        await mine.release()
        await held.release()


async def test_draining_a_process_that_has_the_memory_in_itself_does_the_same() -> None:
    fleet = Fleet()
    async with fleet.direct() as process:
        process.crew.drain()
        with pytest.raises(DrainingError):
            await process.lock().acquire()


# Fairness


async def looping(view: Any, fleet: Fleet, pause: float, log: list[float]) -> None:
    while True:
        async with view:
            log.append(fleet.clock.now())
            await pause_(fleet, pause)


async def pause_(fleet: Fleet, seconds: float) -> None:
    done = asyncio.Event()
    fleet.clock.call_later(seconds, done.set)
    await done.wait()


@pytest.fixture
async def crowd() -> AsyncIterator[list[asyncio.Task[Any]]]:
    tasks: list[asyncio.Task[Any]] = []
    yield tasks
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("same", [True, False])
async def test_two_looping_writers_let_a_reader_in_within_two_holds(same: bool, crowd: list[asyncio.Task[Any]]) -> None:
    fleet = Fleet()
    async with AsyncExitStack() as stack:
        processes = [await stack.enter_async_context(fleet.process()) for _ in range(3)]
        writers = [processes[0], processes[0 if same else 1]]
        for process, _ in writers:
            crowd.append(asyncio.create_task(looping(process.catalog().write, fleet, 0.1, [])))
        await fleet.clock.advance(1.05)
        for process in (processes[0][0], processes[2][0]):
            asked = fleet.clock.now()
            reader = asyncio.create_task(process.catalog().read.acquire())
            while not reader.done():
                await fleet.clock.advance(0.01)
            assert fleet.clock.now() - asked < 0.22
            await (await reader).release()
            await fleet.clock.advance(0.33)
        await stop(crowd, fleet)


@pytest.mark.parametrize("same", [True, False])
async def test_a_stream_of_readers_lets_a_writer_in(same: bool, crowd: list[asyncio.Task[Any]]) -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _), fleet.process() as (another, _):
        for number in range(5):
            crowd.append(asyncio.create_task(looping(process.catalog().read, fleet, 0.1 + number / 100, [])))
        await fleet.clock.advance(1.03)
        asked = fleet.clock.now()
        writer = asyncio.create_task((process if same else another).catalog().write.acquire())
        while not writer.done():
            await fleet.clock.advance(0.01)
        assert fleet.clock.now() - asked < 0.3
        await (await writer).release()
        await stop(crowd, fleet)


async def stop(tasks: list[asyncio.Task[Any]], fleet: Fleet) -> None:
    for task in tasks:
        task.cancel()
    await fleet.clock.advance(0.3)


async def test_fifty_tasks_of_four_processes_all_get_in_at_little_cost() -> None:
    fleet = Fleet()
    async with AsyncExitStack() as stack:
        processes = [await stack.enter_async_context(fleet.process()) for _ in range(4)]
        entered: list[int] = []
        fences: list[int] = []

        async def enter(number: int) -> None:
            for _ in range(4):
                async with processes[number % 4][0].lock() as handle:
                    entered.append(number)
                    fences.append(handle.fencing_token)
                    await pause_(fleet, 0.001)

        tasks = [asyncio.create_task(enter(number)) for number in range(50)]
        while not all(task.done() for task in tasks):
            await fleet.clock.advance(0.001)
        assert sorted(entered) == sorted(list(range(50)) * 4)
        assert fences == list(range(1, 201))
        assert sum(wire.sent() for _, wire in processes) / 200 <= 3.2
        assert empty(await fleet.state("lock:x"))


async def test_a_called_process_that_does_not_come_holds_the_others_up_for_one_claim_window() -> None:
    fleet = Fleet()
    async with fleet.process() as (dead, silence), fleet.process() as (next_, _), fleet.direct() as other:
        held = await other.lock().acquire()
        first = asyncio.create_task(dead.lock().acquire())
        await fleet.clock.settle()
        second = asyncio.create_task(next_.lock().acquire())
        await fleet.clock.settle()
        silence.open_.clear()
        silence.deaf = True
        await held.release()
        await fleet.clock.advance(0.24)
        assert not second.done()
        await fleet.clock.advance(0.02)
        await (await second).release()
        silence.open_.set()
        await fleet.clock.advance(2)
        await (await first).release()


async def test_an_alarm_that_overtakes_an_answer_is_heard() -> None:
    fleet = Fleet()
    async with fleet.process() as (dead, silence), fleet.process() as (slow, wire), fleet.direct() as other:
        held = await other.lock().acquire()
        first = asyncio.create_task(dead.lock().acquire())
        await fleet.clock.settle()
        wire.coming = 0.1
        second = asyncio.create_task(slow.lock().acquire())
        await fleet.clock.advance(0.05)
        # The refusal is on its way, and now the lock comes free.
        silence.open_.clear()
        silence.deaf = True
        await held.release()
        await fleet.clock.advance(0.05 + 0.25 + 0.15)
        assert second.done()
        await fleet.passing((await second).release())
        silence.open_.set()
        await fleet.clock.advance(3)
        await (await first).release()


async def test_a_slow_process_gets_its_turn_without_slowing_the_rest() -> None:
    fleet = Fleet()
    async with fleet.process() as (slow, wire), fleet.process() as (quick, _):
        wire.coming = 1.0
        log: list[float] = []
        slowly: list[float] = []
        tasks = [asyncio.create_task(looping(quick.lock(), fleet, 0.05, log)) for _ in range(3)]
        tasks.append(asyncio.create_task(looping(slow.lock(), fleet, 0.05, slowly)))
        await fleet.clock.advance(30)
        assert len(slowly) >= 3
        assert len(log) >= 30 / 0.05 / 4 / 2
        for task in tasks:
            task.cancel()
        wire.coming = 0
        await fleet.clock.advance(8)


class Unreadable(Wire):
    async def peek(self, key: str) -> Snapshot:
        raise ValueError("a driver's bug")


async def test_a_broken_promise_of_a_store_is_a_backend_error(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet()
    store: Store = Unreadable(fleet.memory._store(), fleet.clock)
    async with Process(store, fleet.clock) as process:
        call = asyncio.create_task(process.lock().locked())
        with pytest.raises(BackendError):
            await fleet.passing(awaited(call))
        assert "broke its promise" in caplog.text


async def awaited(task: "asyncio.Task[bool]") -> bool:
    return await task
