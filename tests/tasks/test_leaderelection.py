"""One leader in the fleet, and what becomes of its work."""

import asyncio
import logging
from contextlib import AsyncExitStack

import pytest

from grelmicro_fastapi.coordination import LeaderElection, Leadership
from grelmicro_fastapi.errors import NotLeaderError, NotRunningError, SettingsValidationError
from tests.tasks.fleet import Process, fleet

pytestmark = pytest.mark.anyio


def standing(process: Process, **options: float) -> LeaderElection:
    return LeaderElection("main", backend=process, metadata={"pod": "a"}, **options)


async def test_one_leads_and_the_others_do_not() -> None:
    async with fleet(3) as (clock, processes), AsyncExitStack() as stack:
        elections = [await stack.enter_async_context(standing(process)) for process in processes]
        await clock.settle()
        assert [election.is_leader() for election in elections].count(True) == 1
        record = await elections[0].record()
        assert record
        assert record.metadata == {"pod": "a"}
        assert record.transitions == 1
        assert record.lease_duration == 15


async def test_a_leader_keeps_leading_for_many_leases() -> None:
    async with fleet(2) as (clock, processes), AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(standing(process)) for process in processes]
        await clock.settle()
        assert first.leadership
        for _ in range(100):
            await clock.advance(1)
            assert first.is_leader()
            assert not second.is_leader()
        assert first.leadership.term == 1


async def test_resigning_lets_the_next_one_lead_at_once_with_a_higher_token() -> None:
    async with fleet(2) as (clock, processes), standing(processes[1]) as second, standing(processes[0]) as first:
        await clock.settle()
        leader, other = (first, second) if first.is_leader() else (second, first)
        assert leader.leadership
        old = leader.leadership.fencing_token
        leader.resign()
        await clock.settle()
        assert other.leadership
        assert other.leadership.fencing_token > old


async def test_a_leader_that_loses_the_store_stops_before_another_can_lead() -> None:
    async with fleet(2) as (clock, processes), AsyncExitStack() as stack:
        first = await stack.enter_async_context(standing(processes[0]))
        await clock.settle()
        second = await stack.enter_async_context(standing(processes[1]))
        await clock.advance(3)
        assert first.is_leader()
        processes[0].wire.cut = True
        for _ in range(400):
            await clock.advance(0.1)
            assert not (first.is_leader() and second.is_leader())
        assert second.is_leader()
        processes[0].wire.cut = False
        for _ in range(100):
            await clock.advance(0.1)
            assert not (first.is_leader() and second.is_leader())
        assert second.is_leader()


async def test_nobody_leads_while_the_store_is_gone_and_exactly_one_afterwards(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with fleet(3) as (clock, processes), AsyncExitStack() as stack:
        elections = [await stack.enter_async_context(standing(process)) for process in processes]
        await clock.advance(1)
        for process in processes:
            process.wire.cut = True
        await clock.advance(60)
        assert not any(election.is_leader() for election in elections)
        assert caplog.text.count("standing for 'main' failed") == len(processes)
        for process in processes:
            process.wire.cut = False
        await clock.advance(10)
        assert [election.is_leader() for election in elections].count(True) == 1


async def test_is_leader_is_false_the_moment_the_deadline_has_passed_though_no_timer_rang() -> None:
    async with fleet(1) as (clock, processes), standing(processes[0]) as election:
        await clock.settle()
        leadership = election.leadership
        assert leadership
        # What a process sees that was stopped, and goes on.
        clock.jump(10.1)
        assert not election.is_leader()
        assert not leadership.valid
        with pytest.raises(NotLeaderError):
            leadership.check()
        with pytest.raises(NotLeaderError):
            _ = leadership.fencing_token


async def test_confirmed_within_says_how_old_the_last_word_of_the_store_is() -> None:
    async with fleet(1) as (clock, processes), standing(processes[0]) as election:
        await clock.settle()
        assert election.is_leader_confirmed_within(0.5)
        processes[0].wire.cut = True
        await clock.advance(3)
        assert election.is_leader()
        assert not election.is_leader_confirmed_within(1)
        assert election.is_leader_confirmed_within(5)


async def test_the_body_is_cancelled_when_the_term_is_lost_and_lead_says_so() -> None:
    ended = asyncio.Event()

    async def body(leadership: Leadership) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with fleet(1) as (clock, processes):
        election = standing(processes[0])
        leading = asyncio.create_task(election.lead(body))
        await clock.settle()
        processes[0].wire.cut = True
        await clock.advance(10.1)
        assert ended.is_set()
        with pytest.raises(NotLeaderError):
            await leading


async def test_cancelling_lead_ends_the_body_and_resigns() -> None:
    ended = asyncio.Event()

    async def body(leadership: Leadership) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with fleet(1) as (clock, processes):
        election = standing(processes[0])
        leading = asyncio.create_task(election.lead(body))
        await clock.settle()
        leading.cancel()
        await clock.settle()
        assert ended.is_set()
        assert leading.cancelled()
        assert await election.record() is None


async def test_a_body_that_raises_steps_down_at_once_and_its_error_comes_out() -> None:
    async def body(leadership: Leadership) -> None:
        raise ValueError("broken")

    async with fleet(2) as (clock, processes), standing(processes[1]) as other:
        election = standing(processes[0])
        await clock.settle()
        other.resign()
        leading = asyncio.create_task(election.lead(body))
        await clock.advance(5)
        with pytest.raises(ValueError, match="broken"):
            await leading
        await clock.advance(5)
        assert other.is_leader()


async def test_with_repeat_a_lost_term_is_followed_by_another() -> None:
    terms: list[int] = []

    async def body(leadership: Leadership) -> None:
        terms.append(leadership.term)
        await asyncio.Event().wait()

    async with fleet(1) as (clock, processes):
        election = standing(processes[0])
        leading = asyncio.create_task(election.lead(body, repeat=True))
        await clock.settle()
        processes[0].wire.cut = True
        await clock.advance(16)
        processes[0].wire.cut = False
        await clock.advance(16)
        leading.cancel()
        await clock.settle()
    assert terms == [1, 2]


async def test_nobody_else_leads_before_a_stubborn_body_has_ended() -> None:
    release = asyncio.Event()

    async def stubborn(leadership: Leadership) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async with fleet(2) as (clock, processes), AsyncExitStack() as stack:
        first = await stack.enter_async_context(standing(processes[0]))
        await clock.settle()
        second = await stack.enter_async_context(standing(processes[1]))
        await clock.settle()
        leading = asyncio.create_task(first.lead(stubborn))
        await clock.settle()
        first.resign()
        await clock.advance(8)
        assert not second.is_leader()
        release.set()
        await clock.settle()
        assert second.is_leader()
        await leading


async def test_a_body_that_outlives_its_lease_is_reported_and_no_longer_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = asyncio.Event()

    async def stubborn(leadership: Leadership) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async with fleet(2) as (clock, processes), AsyncExitStack() as stack:
        first = await stack.enter_async_context(standing(processes[0]))
        await clock.settle()
        second = await stack.enter_async_context(standing(processes[1]))
        leading = asyncio.create_task(first.lead(stubborn))
        await clock.settle()
        processes[0].wire.cut = True
        with caplog.at_level(logging.CRITICAL):
            await clock.advance(20)
        assert "goes on although its lease has ended" in caplog.text
        assert second.is_leader()
        release.set()
        processes[0].wire.cut = False
        await clock.settle()
        await leading


async def test_waiting_for_leadership_never_sleeps_past_a_change() -> None:
    async with fleet(2) as (clock, processes), AsyncExitStack() as stack:
        first = await stack.enter_async_context(standing(processes[0]))
        await clock.settle()
        second = await stack.enter_async_context(standing(processes[1]))
        won = asyncio.create_task(second.wait_for_leader())
        lost = asyncio.create_task(first.wait_lose_leader())
        await clock.advance(1)
        assert not won.done()
        assert not lost.done()
        first.resign()
        await clock.settle()
        assert lost.done()
        assert won.done()
        await second.wait_for_leader()
        await first.wait_lose_leader()


async def test_equal_workers_never_both_lead() -> None:
    async with fleet(3) as (clock, processes), AsyncExitStack() as stack:
        elections = [
            await stack.enter_async_context(LeaderElection("main", backend=process, worker="same"))
            for process in processes
        ]
        for _ in range(30):
            await clock.advance(1)
            assert [election.is_leader() for election in elections].count(True) == 1
        record = await elections[0].record()
        assert record
        assert record.holder == "same"


@pytest.mark.parametrize(
    "options",
    [
        {"lease_duration": 10, "renew_deadline": 10},
        {"renew_deadline": 2, "retry_interval": 2, "backend_timeout": 1},
        {"backend_timeout": 10},
        {"lease_duration": -1},
    ],
)
async def test_times_that_leave_no_time_to_stop_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(SettingsValidationError):
        LeaderElection("main", **options)


async def test_waiting_without_standing_names_the_cure() -> None:
    async with fleet(1) as (_, processes):
        election = standing(processes[0])
        with pytest.raises(NotRunningError, match="async with election"):
            await election.wait_for_leader()
        assert not election.is_leader()
        assert await election.record() is None


async def test_a_stopped_candidate_wakes_whoever_waits_for_its_leadership() -> None:
    async with fleet(2) as (clock, processes), standing(processes[0]):
        await clock.settle()
        second = standing(processes[1])
        await second.open()
        waiting = asyncio.create_task(second.wait_for_leader())
        await clock.settle()
        await second.close()
        await clock.settle()
        with pytest.raises(NotLeaderError):
            await waiting


async def test_a_drained_process_resigns_and_stands_no_more() -> None:
    async with fleet(2) as (clock, processes), AsyncExitStack() as stack:
        first = await stack.enter_async_context(standing(processes[0]))
        await clock.settle()
        second = await stack.enter_async_context(standing(processes[1]))
        await clock.settle()
        processes[0].crew().drain()
        await clock.settle()
        assert not first.is_leader()
        assert second.is_leader()
        processes[1].crew().drain()
        await clock.advance(60)
        assert not first.is_leader()


async def test_leaving_leadership_behind_costs_nothing_in_the_store() -> None:
    async with fleet(1) as (clock, processes):
        for _ in range(3):
            async with standing(processes[0]) as election:
                await clock.settle()
                assert election.is_leader()
        state = (await processes[0].wire.peek("leader:main")).state
        assert state.writer is None
        assert state.seats == []
        assert state.fence == 3
        assert not state.poisoned


async def test_a_process_that_shuts_down_already_stands_no_more_and_says_so() -> None:
    async with fleet(1) as (clock, processes):
        processes[0].crew().drain()
        async with standing(processes[0]) as election:
            waiting = asyncio.create_task(election.wait_for_leader())
            await clock.settle()
            with pytest.raises(NotLeaderError):
                await waiting
        assert not election.is_leader()


async def test_what_work_raises_while_it_is_cancelled_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def body(leadership: Leadership) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("while ending")

    async with fleet(1) as (clock, processes):
        leading = asyncio.create_task(standing(processes[0]).lead(body))
        await clock.settle()
        leading.cancel()
        await clock.settle()
        assert leading.cancelled()
    assert "ValueError: while ending" in caplog.text
