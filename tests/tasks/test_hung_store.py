"""Leaders and ticks on a store that takes requests and says nothing."""

import asyncio

import pytest

from grelmicro_fastapi.coordination import LeaderElection, Leadership
from grelmicro_fastapi.coordination.state import Command, Renew
from grelmicro_fastapi.errors import NotLeaderError
from grelmicro_fastapi.tasks import Tasks
from tests.coordination.crews import Fleet

pytestmark = pytest.mark.anyio


async def test_a_leader_renews_often_and_so_its_word_is_never_old() -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _), LeaderElection("main", backend=process) as election:
        await fleet.clock.settle()
        for _ in range(60):
            await fleet.clock.advance(0.5)
            assert election.is_leader_confirmed_within(2.6)


async def test_one_renewal_that_hangs_is_given_up_in_time_for_another() -> None:
    fleet = Fleet()
    async with (
        fleet.process() as (process, wire),
        LeaderElection("main", backend=process, backend_timeout=1) as election,
    ):
        await fleet.clock.settle()
        hung: list[Command] = []

        def hangs(command: Command) -> bool:
            if isinstance(command, Renew) and not hung:
                hung.append(command)
                return True
            return False

        wire.hangs = hangs
        for _ in range(40):
            await fleet.clock.advance(0.5)
            # Two seconds to the renewal, one that it hangs, and a pause.
            assert election.is_leader_confirmed_within(5)
        assert hung


async def test_a_store_that_hangs_ends_the_body_before_another_process_can_lead() -> None:
    fleet = Fleet()
    ended: list[float] = []

    async def body(leadership: Leadership) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(fleet.clock.now())

    async with fleet.process() as (one, wire), fleet.process() as (two, _):
        first, second = LeaderElection("main", backend=one), LeaderElection("main", backend=two)
        leading = asyncio.create_task(first.lead(body))
        await fleet.clock.settle()
        async with second:
            wire.hangs = lambda command: True
            while not second.is_leader():
                assert not (first.is_leader() and second.is_leader())
                await fleet.clock.advance(0.1)
            assert ended
            assert ended[0] < fleet.clock.now() - 4
            wire.hangs = lambda command: False
            with pytest.raises(NotLeaderError):
                await fleet.passing(asyncio.wait_for(leading, None))


async def test_a_fleet_task_on_a_store_that_hangs_is_cancelled_and_goes_on_when_it_answers() -> None:
    fleet = Fleet()
    runs: list[str] = []
    async with fleet.process() as (process, wire):
        tasks = Tasks(backend=process.backend)

        @tasks.every(60, on="cluster")
        async def work() -> None:
            try:
                if len(runs) < 1:
                    runs.append("begins")
                    await asyncio.Event().wait()
                runs.append("done")
            except asyncio.CancelledError:
                runs.append("cancelled")
                raise

        async with tasks:
            await fleet.clock.settle()
            wire.hangs = lambda command: True
            await fleet.clock.advance(29.8)
            assert runs == ["begins", "cancelled"]
            wire.hangs = lambda command: False
            await fleet.clock.advance(60)
            (health,) = tasks.health()
    assert runs == ["begins", "cancelled", "done"]
    assert (health.failures, health.missed) == (1, 1)
