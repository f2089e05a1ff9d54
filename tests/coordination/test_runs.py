"""Several writers of one process enter in a row, but not for long while others wait elsewhere."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from grelmicro_fastapi.coordination.run import LONGEST
from grelmicro_fastapi.coordination.state import Leave
from grelmicro_fastapi.coordination.view import View
from grelmicro_fastapi.errors import StaleGenerationError
from tests.coordination.crews import Fleet, Process, empty

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("wires")]


async def enter(fleet: Fleet, view: View[Any], log: list[str], name: str, hold: float) -> None:
    async with view:
        log.append(name)
        await pause(fleet, hold)


async def pause(fleet: Fleet, seconds: float) -> None:
    done = asyncio.Event()
    fleet.clock.call_later(seconds, done.set)
    await done.wait()


def crowd(
    fleet: Fleet, process: Process, log: list[str], name: str, size: int, hold: float
) -> "list[asyncio.Task[None]]":
    return [asyncio.create_task(enter(fleet, process.lock(), log, name, hold)) for _ in range(size)]


async def finish(fleet: Fleet, tasks: "list[asyncio.Task[None]]", by: float) -> None:
    while not all(task.done() for task in tasks):
        await fleet.clock.advance(by)
    await asyncio.gather(*tasks)


async def played(size: int, hold: float) -> str:
    """Two processes with so many tasks each want the same lock: in which order they enter."""
    fleet, log = Fleet(), list[str]()
    async with fleet.process() as (one, _), fleet.process() as (two, _), fleet.direct() as other:
        held = await other.lock().acquire()
        tasks = crowd(fleet, one, log, "a", size, hold)
        await fleet.clock.settle()
        tasks += crowd(fleet, two, log, "b", size, hold)
        await fleet.clock.settle()
        await held.release()
        await finish(fleet, tasks, hold / 2)
        assert empty(await fleet.state("lock:x"))
    return "".join(log)


async def test_processes_take_turns_of_a_few_short_holds() -> None:
    assert LONGEST == 4
    assert await played(8, hold=0.001) == "aaaabbbbaaaabbbb"


async def test_who_holds_for_long_takes_turns_with_the_others_one_by_one() -> None:
    assert await played(3, hold=0.2) == "ababab"


async def test_a_turn_ends_when_it_has_lasted_long_enough() -> None:
    # The third begins before its end, at 44 ms, and no fourth.
    assert await played(6, hold=0.022) == "aaabbbaaabbb"


async def test_to_hand_on_within_a_process_costs_two_commands() -> None:
    fleet, log = Fleet(), list[str]()
    async with fleet.process() as (one, wire), fleet.process() as (two, _), fleet.direct() as other:
        held = await other.lock().acquire()
        tasks = crowd(fleet, one, log, "a", 4, 0.001)
        await fleet.clock.settle()
        tasks += crowd(fleet, two, log, "b", 4, 0.001)
        await fleet.clock.settle()
        wire.batches.clear()
        await held.release()
        await finish(fleet, tasks, 0.0005)
        assert log == ["a"] * 4 + ["b"] * 4
        assert wire.sent() == 2 * 4
        # The first request, three releases with the next request, and the last release.
        assert len(wire.batches) == 5


async def test_one_who_waits_elsewhere_enters_after_one_run_of_each_of_the_others() -> None:
    fleet, log = Fleet(), list[str]()
    async with fleet.process() as (one, _), fleet.process() as (two, _), fleet.process() as (lone, _):
        stopped = False

        async def again(process: Process) -> None:
            while not stopped:
                await enter(fleet, process.lock(), log, "busy", 0.001)

        tasks = [asyncio.create_task(again(process)) for process in (one, two) for _ in range(5)]
        await fleet.clock.advance(0.03)
        log.clear()
        waiter = asyncio.create_task(enter(fleet, lone.lock(), log, "lone", 0.001))
        while not waiter.done():
            await fleet.clock.advance(0.0005)
        assert log.index("lone") <= 2 * LONGEST + 1
        stopped = True
        await finish(fleet, tasks, 0.001)


async def test_readers_elsewhere_have_their_turn_in_the_middle_of_a_run() -> None:
    fleet, log = Fleet(), list[str]()
    async with fleet.process() as (one, _), fleet.process() as (two, _):
        catalog = one.catalog()
        tasks = [asyncio.create_task(enter(fleet, catalog.write, log, "w", 0.01)) for _ in range(4)]
        await fleet.clock.advance(0.012)
        tasks += [asyncio.create_task(enter(fleet, two.catalog().read, log, "r", 0.01)) for _ in range(2)]
        await finish(fleet, tasks, 0.002)
        assert "".join(log) == "wwrrww"
        assert empty(await fleet.state())


async def test_a_process_whose_store_answers_late_enters_once_and_asks_no_more_than_it_must() -> None:
    fleet, log = Fleet(), list[str]()
    async with fleet.process() as (late, wire), fleet.direct() as other:
        wire.coming = 0.2
        held = await other.lock().acquire()
        tasks = crowd(fleet, late, log, "late", 3, 0.001)
        await fleet.clock.advance(0.5)
        await held.release()
        while not log:
            await fleet.clock.advance(0.01)
        assert not (await fleet.state("lock:x")).seats
        await finish(fleet, tasks, 0.05)
        assert wire.sent(Leave) == 0


async def test_one_late_answer_costs_a_process_one_run_and_no_more() -> None:
    fleet, log = Fleet(), list[str]()
    async with fleet.process() as (one, wire), fleet.process() as (two, _), fleet.direct() as other:
        held = await other.lock().acquire()
        wire.coming = 0.2
        tasks = crowd(fleet, one, log, "a", 9, 0.001)
        await fleet.clock.advance(0.3)
        wire.coming = 0.0
        tasks += crowd(fleet, two, log, "b", 8, 0.001)
        await fleet.clock.settle()
        await held.release()
        await finish(fleet, tasks, 0.0005)
        assert "".join(log) == "abbbbaaaabbbbaaaa"


async def test_a_place_that_was_kept_for_those_who_gave_up_is_given_up() -> None:
    fleet, log = Fleet(), list[str]()
    async with fleet.process() as (one, wire), fleet.direct() as other:
        held = await other.lock().acquire()
        tasks = crowd(fleet, one, log, "a", 3, 1)
        await fleet.clock.settle()
        await held.release()
        await fleet.clock.settle()
        assert len((await fleet.state("lock:x")).seats) == 1
        for task in tasks[1:]:
            task.cancel()
        await fleet.clock.settle()
        assert not (await fleet.state("lock:x")).seats
        assert wire.sent(Leave) == 1
        await fleet.clock.advance(1)
        await tasks[0]


async def test_a_process_that_dies_in_its_run_holds_the_others_up_for_its_lease_and_one_claim_window() -> None:
    fleet = Fleet()
    async with AsyncExitStack() as stack:
        dying, wire = await stack.enter_async_context(fleet.process())
        other, _ = await stack.enter_async_context(fleet.process())
        held = await other.lock().acquire()
        mine = [asyncio.create_task(dying.lock(lease_duration=1).acquire()) for _ in range(3)]
        await fleet.clock.settle()
        await held.release()
        await fleet.clock.settle()
        assert mine[0].done()
        waiter = asyncio.create_task(other.lock().acquire())
        await fleet.clock.settle()
        wire.open_.clear()
        await fleet.clock.advance(1.0)
        await fleet.clock.advance(0.26)
        await (await waiter).release()
        wire.open_.set()
        for task in mine:
            task.cancel()


async def test_the_next_one_here_enters_after_a_grant_for_which_nobody_came() -> None:
    fleet, log = Fleet(), list[str]()
    async with fleet.process() as (one, wire), fleet.direct() as other:
        held = await other.lock().acquire()
        tasks = crowd(fleet, one, log, "a", 3, 0.001)
        await fleet.clock.settle()
        wire.coming = 0.01
        await held.release()
        await fleet.clock.settle()
        # The grant is on its way.
        tasks[0].cancel()
        await finish(fleet, tasks[1:], 0.001)
        assert log == ["a", "a"]
        await fleet.clock.advance(0.1)
        state = await fleet.state("lock:x")
        assert (state.writer, state.seats, state.poisoned) == (None, [], False)


async def test_a_place_that_was_kept_for_one_whose_generation_has_passed_is_given_up() -> None:
    fleet = Fleet()
    async with fleet.process() as (one, _), fleet.process() as (two, _):
        held = await two.catalog().write.acquire()
        tasks = [asyncio.create_task(one.catalog().write.acquire(expect=expect)) for expect in (held.fencing_token, 7)]
        await fleet.clock.settle()
        await held.release()
        await fleet.clock.settle()
        reader = asyncio.create_task(two.catalog().read.acquire())
        await fleet.clock.settle()
        await (await tasks[0]).release()
        await fleet.clock.settle()
        with pytest.raises(StaleGenerationError):
            await tasks[1]
        assert reader.done()
        await (await reader).release()
        assert empty(await fleet.state())
