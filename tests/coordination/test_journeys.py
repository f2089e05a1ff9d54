"""Batches that follow others before these are answered."""

import asyncio
from collections.abc import Sequence

import pytest

from grelmicro_fastapi.coordination.lane import ABREAST, CROWD
from grelmicro_fastapi.coordination.parcel import RENEWALS, Parcel
from grelmicro_fastapi.coordination.state import Release
from grelmicro_fastapi.coordination.store import Answer, Ask, Flight, Landed
from grelmicro_fastapi.errors import BackendError
from tests.coordination.crews import Fleet, Process, SwiftWire, empty

pytestmark = pytest.mark.anyio


class Road(SwiftWire):
    """It remembers what left, and in which order; nothing arrives before the test says so."""

    left: list[list[Ask]]
    follows = True

    def send(self, asks: Sequence[Ask], landed: Landed) -> Flight | None:
        self.left.append(list(asks))
        flight = super().send(asks, landed)
        return _Leader(self, flight) if flight else None


class _Leader:
    def __init__(self, road: Road, flight: Flight) -> None:
        self.road = road
        self.flight = flight

    def follow(self, asks: Sequence[Ask], landed: Landed) -> Flight | None:
        if not self.road.follows:
            return None
        flight = self.flight.follow(asks, landed)
        if flight:
            self.road.left.append(list(asks))
        return _Leader(self.road, flight) if flight else None

    def abandon(self) -> None:
        self.flight.abandon()


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
def road(fleet: Fleet) -> Road:
    road = Road(fleet.memory._store(), fleet.clock)
    road.left = []
    road.open_.clear()
    return road


def sizes(batches: list[list[Ask]]) -> list[int]:
    return [len(batch) for batch in batches]


class Senders:
    """Commands that were posted, and their answers."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.answers: list[Answer] = []
        self.parcels: list[Parcel] = []

    def post(self, count: int, first: int = 0, lane: str = "") -> None:
        for number in range(first, first + count):
            answered, command = self.answers.append, Release("token")
            self.parcels.append(self.process.crew.courier.post(f"n{number}", command, answered, lane=lane))


async def test_behind_a_batch_half_of_a_crowd_leaves_before_that_is_answered_and_never_a_third(
    fleet: Fleet, road: Road
) -> None:
    async with Process(road, fleet.clock) as process:
        senders = Senders(process)
        senders.post(101)
        await fleet.clock.settle()
        senders.post(100, first=101)
        await fleet.clock.settle()
        assert ABREAST == 2
        assert sizes(road.left) == [1, 50]
        assert not senders.answers
        road.open_.set()
        await fleet.clock.settle()
        assert sizes(road.left)[:4] == [1, 50, 75, 37]
        assert len(senders.answers) == 201
        # Nothing has overtaken anything.
        assert [ask.key for batch in road.batches for ask in batch] == [f"n{number}" for number in range(201)]


async def test_a_few_commands_wait_for_what_is_under_way_and_lose_nothing_of_their_time(
    fleet: Fleet, road: Road
) -> None:
    async with Process(road, fleet.clock) as process:
        senders = Senders(process)
        senders.post(CROWD)
        await fleet.clock.settle()
        assert sizes(road.left) == [1]
        assert [parcel.left for parcel in senders.parcels[1:]] == [None] * (CROWD - 1)
        road.open_.set()
        await fleet.clock.settle()
        assert sizes(road.left) == [1, CROWD - 1]


async def test_where_nothing_can_follow_it_waits_and_is_not_counted_as_sent(fleet: Fleet, road: Road) -> None:
    async with Process(road, fleet.clock) as process:
        road.follows = False
        senders = Senders(process)
        senders.post(101)
        await fleet.clock.settle()
        assert [parcel.left for parcel in senders.parcels[1:]] == [None] * 100
        road.open_.set()
        await fleet.clock.settle()
        assert sizes(road.left) == [1, 100]
        assert len(senders.answers) == 101


async def test_in_a_lane_apart_nothing_follows(fleet: Fleet, road: Road) -> None:
    async with Process(road, fleet.clock) as process:
        senders = Senders(process)
        senders.post(101, lane=RENEWALS)
        await fleet.clock.settle()
        assert sizes(road.left) == [1]
        road.open_.set()
        await fleet.clock.settle()
        assert sizes(road.left) == [1, 100]


async def test_what_follows_a_batch_that_is_given_up_is_told_so_and_leaves_nothing_behind(
    fleet: Fleet, road: Road
) -> None:
    async with Process(road, fleet.clock) as process:
        first = asyncio.create_task(process.lock("first").acquire())
        await fleet.clock.advance(1)
        calls = [asyncio.create_task(process.lock(f"n{number}").acquire()) for number in range(2 * CROWD)]
        await fleet.clock.advance(3.9)
        assert sizes(road.left) == [1, CROWD]
        assert not any(call.done() for call in (first, *calls))
        await fleet.clock.advance(0.2)
        for call, why in ((first, "within 5 s"), *((call, "broke") for call in calls[:CROWD])):
            with pytest.raises(BackendError, match=why):
                await call
        road.open_.set()
        # Who had not left yet is served, and nobody else has left anything.
        guards = await asyncio.gather(*calls[CROWD:])
        await fleet.clock.advance(1)
        for name in ("first", *(f"n{number}" for number in range(CROWD))):
            assert empty(await process.state(f"lock:{name}"))
        for guard in guards:
            await guard.release()


async def test_an_urgent_command_hastens_everything_that_is_under_way(fleet: Fleet, road: Road) -> None:
    async with Process(road, fleet.clock) as process:
        senders = Senders(process)
        senders.post(2 * CROWD + 1)
        await fleet.clock.settle()
        assert sizes(road.left) == [1, CROWD]
        process.crew.courier.post("urgent", Release("urgent"), senders.answers.append, bound=0.3)
        await fleet.clock.advance(0.29)
        assert not senders.answers
        await fleet.clock.advance(0.02)
        assert sum(isinstance(answer, BackendError) for answer in senders.answers) == 1 + CROWD
        road.open_.set()
        await fleet.clock.settle()
        assert len(senders.answers) == 2 * CROWD + 2


async def test_whoever_closes_tells_all_who_wait_for_batches_under_way(fleet: Fleet, road: Road) -> None:
    async with Process(road, fleet.clock) as process:
        senders = Senders(process)
        senders.post(2 * CROWD + 1)
        await fleet.clock.settle()
        process.crew.courier._lanes["", road.lane("n0")].close()
        assert [answer.sent for answer in senders.answers if isinstance(answer, BackendError)] == [
            *[True] * (1 + CROWD),
            *[False] * CROWD,
        ]
        road.open_.set()
        await fleet.clock.settle()
        assert len(senders.answers) == 2 * CROWD + 1
