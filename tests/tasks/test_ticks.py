"""One run in the fleet for each tick."""

import asyncio
import logging
from contextlib import AsyncExitStack

import pytest

from grelmicro_fastapi.errors import SettingsValidationError
from grelmicro_fastapi.tasks import TaskContext, Tasks
from tests.tasks.fleet import Process, fleet

pytestmark = pytest.mark.anyio

Runs = list[tuple[int, float]]


def counting(process: Process, number: int, runs: Runs, **options: bool) -> Tasks:
    tasks = Tasks(backend=process)

    @tasks.every(10, on="cluster", name="tick", **options)
    async def tick(context: TaskContext) -> None:
        assert context.scheduled_at is not None
        runs.append((number, context.scheduled_at.timestamp()))

    return tasks


async def test_four_processes_and_twenty_ticks_make_twenty_runs() -> None:
    runs: Runs = []
    async with fleet(4) as (clock, processes), AsyncExitStack() as stack:
        for number, process in enumerate(processes):
            await stack.enter_async_context(counting(process, number, runs))
        await clock.advance(5)
        runs.clear()
        await clock.advance(200)
    ticks = [tick for _, tick in runs]
    assert len(ticks) == 20
    assert ticks == sorted(set(ticks))
    assert all(tick % 10 == 0 for tick in ticks)


async def test_a_process_whose_clock_is_an_hour_fast_claims_nothing_early() -> None:
    runs: Runs = []
    async with fleet(2) as (clock, processes), AsyncExitStack() as stack:
        await stack.enter_async_context(counting(processes[0], 0, runs))
        await clock.advance(25)
        clock.step_wall(3600)
        await stack.enter_async_context(counting(processes[1], 1, runs))
        await clock.advance(30)
    # The store's clock does not jump with the host's.
    ticks = [tick for _, tick in runs]
    assert ticks == [ticks[0] + 10 * number for number in range(len(ticks))]
    assert len(ticks) in {6, 7}


async def test_a_tick_whose_claimant_died_is_reported_and_not_run_again(caplog: pytest.LogCaptureFixture) -> None:
    runs: Runs = []
    async with fleet(2) as (clock, processes), AsyncExitStack() as stack:
        doomed = Tasks(backend=processes[0])
        started = asyncio.Event()

        @doomed.every(10, on="cluster", name="tick")
        async def hang() -> None:
            started.set()
            await asyncio.Event().wait()

        await stack.enter_async_context(doomed)
        await clock.settle()
        assert started.is_set()
        processes[0].wire.cut = True
        heir = counting(processes[1], 1, runs)
        await stack.enter_async_context(heir)
        with caplog.at_level(logging.WARNING):
            await clock.advance(60)
        health = heir.health()[0]
    assert health.missed == 1
    assert caplog.text.count("never ended, its process died or was stopped: it is not done again") == 1
    ticks = [tick for _, tick in runs]
    assert len(ticks) == len(set(ticks)) >= 2


async def test_with_catch_up_the_tick_of_a_dead_claimant_runs_once_more() -> None:
    runs: Runs = []
    async with fleet(2) as (clock, processes), AsyncExitStack() as stack:
        doomed = Tasks(backend=processes[0])
        seen: list[float] = []

        @doomed.every(10, on="cluster", name="tick", catch_up=True)
        async def hang(context: TaskContext) -> None:
            assert context.scheduled_at is not None
            seen.append(context.scheduled_at.timestamp())
            await asyncio.Event().wait()

        await stack.enter_async_context(doomed)
        await clock.settle()
        processes[0].wire.cut = True
        await stack.enter_async_context(counting(processes[1], 1, runs, catch_up=True))
        await clock.advance(60)
    assert [tick for _, tick in runs].count(seen[0]) == 1
    assert runs[0] == (1, seen[0])


async def test_a_run_that_outlasts_its_interval_keeps_the_next_tick_from_every_process() -> None:
    running = 0
    most = 0
    async with fleet(3) as (clock, processes), AsyncExitStack() as stack:
        for process in processes:
            tasks = Tasks(backend=process)

            @tasks.every(10, on="cluster", name="tick")
            async def slow(process: Process = process) -> None:
                nonlocal running, most
                running += 1
                most = max(most, running)
                done = asyncio.Event()
                process.clock.call_later(35, done.set)
                await done.wait()
                running -= 1

            await stack.enter_async_context(tasks)
        await clock.advance(200)
    assert most == 1


async def test_a_claimant_that_loses_the_store_is_cancelled_before_its_lease_ends() -> None:
    ended: list[str] = []
    async with fleet(1) as (clock, processes), AsyncExitStack() as stack:
        tasks = Tasks(backend=processes[0])

        @tasks.every(100, on="cluster")
        async def long() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("ended")

        await stack.enter_async_context(tasks)
        await clock.settle()
        processes[0].wire.cut = True
        await clock.advance(29.6)
        assert not ended
        await clock.advance(0.1)
        assert ended == ["ended"]
        processes[0].wire.cut = False


async def test_an_outage_ends_no_task(caplog: pytest.LogCaptureFixture) -> None:
    runs: Runs = []
    async with fleet(1) as (clock, processes), AsyncExitStack() as stack:
        await stack.enter_async_context(counting(processes[0], 0, runs))
        await clock.advance(15)
        processes[0].wire.cut = True
        with caplog.at_level(logging.WARNING, "grelmicro_fastapi.tasks"):
            await clock.advance(100)
        processes[0].wire.cut = False
        before = len(runs)
        await clock.advance(30)
    assert len(runs) >= before + 2
    assert caplog.text.count("cannot claim its ticks") == 1


async def test_a_fleet_task_of_less_than_a_tenth_of_a_second_is_refused() -> None:
    with pytest.raises(SettingsValidationError, match=r"at most every 0\.1 s"):
        Tasks().every(0.05, on="cluster")


async def test_a_killed_claimant_costs_its_own_tick_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    runs: Runs = []
    async with fleet(3) as (clock, processes), AsyncExitStack() as stack:
        for number, process in enumerate(processes):
            tasks = Tasks(backend=process)

            @tasks.every(1, on="cluster", name="tick")
            async def tick(context: TaskContext, number: int = number) -> None:
                assert context.scheduled_at is not None
                runs.append((number, context.scheduled_at.timestamp()))
                if len(runs) == 5:
                    processes[number].wire.cut = True
                    await asyncio.Event().wait()

            await stack.enter_async_context(tasks)
        with caplog.at_level(logging.WARNING, "grelmicro_fastapi.tasks"):
            await clock.advance(20.5)
    killed = runs[4]
    ticks = [tick for _, tick in runs]
    assert ticks == [ticks[0] + number for number in range(len(ticks))]
    assert len(ticks) == 21
    assert caplog.text.count("never ended") == 1
    assert killed[0] not in {number for number, _ in runs[5:]}


async def test_a_run_that_was_stopped_with_its_process_has_not_ended() -> None:
    runs: Runs = []
    async with fleet(2) as (clock, processes), AsyncExitStack() as stack:
        stopped = Tasks(backend=processes[0])

        @stopped.every(10, on="cluster", name="tick", catch_up=True)
        async def hang() -> None:
            await asyncio.Event().wait()

        await stopped.open()
        await clock.settle()
        await stopped.close()
        await stack.enter_async_context(counting(processes[1], 1, runs, catch_up=True))
        await clock.advance(9.5)
    assert len(runs) == 1


async def test_a_run_that_raised_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    async with fleet(1) as (clock, processes):
        tasks = Tasks(backend=processes[0])

        @tasks.every(10, on="cluster", catch_up=True)
        async def fail() -> None:
            raise ValueError("no")

        async with tasks:
            await clock.advance(25)
            (health,) = tasks.health()
    assert (health.runs, health.failures, health.missed) == (3, 3, 0)
    assert "never ended" not in caplog.text


async def test_a_run_whose_end_could_not_be_told_at_once_is_not_taken_for_dead(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with fleet(1) as (clock, processes):
        tasks = Tasks(backend=processes[0])

        @tasks.every(10, on="cluster")
        async def blink() -> None:
            processes[0].wire.cut = True

        async with tasks:
            for _ in range(3):
                await clock.advance(0.5)
                processes[0].wire.cut = False
                await clock.advance(9.5)
            (health,) = tasks.health()
    assert health.runs >= 3
    assert health.missed == 0
    assert "never ended" not in caplog.text


async def test_ticks_that_passed_while_nobody_was_there_are_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    told: list[int] = []
    async with fleet(1) as (clock, processes):
        tasks = Tasks(backend=processes[0])

        @tasks.every(10, on="cluster")
        async def tick(context: TaskContext) -> None:
            told.append(context.missed)

        async with tasks:
            await clock.advance(5)
        await clock.advance(40)
        async with tasks:
            await clock.settle()
            (health,) = tasks.health()
    assert told == [0, 3]
    assert health.missed == 3
    assert "missed 3 of its runs" in caplog.text


@pytest.mark.parametrize("catch_up", [False, True])
async def test_a_daily_run_whose_process_died_is_found_long_before_the_next_day(catch_up: bool) -> None:
    fired: list[str] = []
    async with fleet(3) as (clock, processes), AsyncExitStack() as stack:
        for number, process in enumerate(processes):
            tasks = Tasks(backend=process)

            @tasks.cron("0 3 * * *", on="cluster", name="nightly", catch_up=catch_up)
            async def nightly(context: TaskContext, number: int = number) -> None:
                fired.append(f"{context.scheduled_at:%d %H:%M}")
                if len(fired) == 1:
                    processes[number].wire.cut = True
                    await asyncio.Event().wait()

            await stack.enter_async_context(tasks)
            stack.callback(lambda tasks=tasks: found.append(tasks.health()[0].missed))
        found: list[int] = []
        await clock.advance(19 * 3600 + 65)
    assert sum(found) == 1
    assert fired == ["16 03:00"] * (2 if catch_up else 1)


async def test_each_run_has_a_higher_fencing_token() -> None:
    tokens: list[int] = []
    async with fleet(2) as (clock, processes), AsyncExitStack() as stack:
        for process in processes:
            tasks = Tasks(backend=process)

            @tasks.every(10, on="cluster")
            async def tick(context: TaskContext) -> None:
                assert context.fencing_token
                tokens.append(context.fencing_token)

            await stack.enter_async_context(tasks)
        await clock.advance(50.5)
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 6


class Nightly:
    """A fleet whose only task is due at three o'clock, by the store's clock."""

    def __init__(self, processes: list[Process], **options: float) -> None:
        self.fired: list[tuple[str, int]] = []
        self.fleet = [self._tasks(process, **options) for process in processes]

    def _tasks(self, process: Process, **options: float) -> Tasks:
        tasks = Tasks(backend=process)

        @tasks.cron("0 3 * * *", on="cluster", name="nightly", **options)
        async def nightly(context: TaskContext) -> None:
            assert context.scheduled_at
            self.fired.append((f"{context.scheduled_at:%d %H:%M}", context.missed))

        return tasks


async def test_a_time_of_day_comes_once_for_the_fleet() -> None:
    # The clock starts on 15 January at eight.
    async with fleet(3) as (clock, processes), AsyncExitStack() as stack:
        nightly = Nightly(processes)
        for tasks in nightly.fleet:
            await stack.enter_async_context(tasks)
        await clock.advance(3 * 86_400)
    assert nightly.fired == [("16 03:00", 0), ("17 03:00", 0), ("18 03:00", 0)]


async def test_a_time_missed_by_everybody_is_made_up_for_once_within_its_grace() -> None:
    async with fleet(2) as (clock, processes), AsyncExitStack() as stack:
        nightly = Nightly(processes, grace=3600)
        async with nightly.fleet[0]:
            await clock.advance(86_400)
        await clock.advance(19.5 * 3600)
        for tasks in nightly.fleet:
            await stack.enter_async_context(tasks)
        await clock.advance(3600)
    assert nightly.fired == [("16 03:00", 0), ("17 03:00", 0)]


async def test_a_time_missed_by_more_than_its_grace_is_reported_once_and_not_made_up_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with fleet(2) as (clock, processes), AsyncExitStack() as stack:
        nightly = Nightly(processes, grace=60)
        async with nightly.fleet[0]:
            await clock.advance(86_400)
        await clock.advance(20 * 3600)
        for tasks in nightly.fleet:
            await stack.enter_async_context(tasks)
        await clock.advance(3600)
        missed = sum(tasks.health()[0].missed for tasks in nightly.fleet)
    assert nightly.fired == [("16 03:00", 0)]
    assert missed == 1
    assert caplog.text.count("missed 1 of its runs") == 1


async def test_a_new_task_has_missed_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with fleet(1) as (clock, processes):
        nightly = Nightly(processes)
        async with nightly.fleet[0]:
            await clock.advance(3600)
            assert nightly.fleet[0].health()[0].missed == 0
    assert not nightly.fired
    assert "missed" not in caplog.text
