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
    assert "the run of" in caplog.text
    assert "never ended" in caplog.text
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
        await clock.advance(29.7)
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
