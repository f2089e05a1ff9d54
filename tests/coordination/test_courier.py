"""What carries commands: lanes, and what is known of the pace of a store."""

import asyncio
from collections.abc import Hashable, Sequence
from contextvars import ContextVar

import pytest

from grelmicro_fastapi.coordination.pace import Pace
from grelmicro_fastapi.coordination.parcel import closed
from grelmicro_fastapi.coordination.state import CLAIM, Acquire, Mode, Release
from grelmicro_fastapi.coordination.store import Answer, Ask
from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.testing.clock import ManualClock
from tests.coordination.crews import Fleet, Process, SwiftWire, Wire, empty

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("wires")]

request: ContextVar[str] = ContextVar("request", default="nobody's")


class Observed(Wire):
    """A store with a lane for each key, that sees in whose context it is called, and may break its promises."""

    contexts: set[str]
    fault: Exception | None = None
    short = False

    def lane(self, key: str) -> Hashable:
        return key

    async def apply(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        self.contexts.add(request.get())
        if self.fault:
            raise self.fault
        answers = await super().apply(asks)
        return answers[:-1] if self.short else answers


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
def wire(fleet: Fleet) -> Observed:
    wire = Observed(fleet.memory._store(), fleet.clock)
    wire.contexts = set()
    return wire


async def test_lanes_have_a_task_only_while_they_carry_something(fleet: Fleet, wire: Observed) -> None:
    async with Process(wire, fleet.clock) as process:
        before = len(asyncio.all_tasks())
        guards = [await process.lock(f"n{number}").acquire() for number in range(100)]
        await asyncio.gather(*(guard.release() for guard in guards))
        await fleet.clock.settle()
        assert not any(lane.busy for lane in process.crew.courier._lanes.values())
        assert len(asyncio.all_tasks()) == before


async def test_a_store_is_called_in_nobodys_context(fleet: Fleet, wire: Observed) -> None:
    async with Process(wire, fleet.clock) as process:
        request.set("the first caller's")
        async with process.lock():
            pass
        assert wire.contexts == {"nobody's"}


async def test_what_arrives_while_a_batch_is_under_way_travels_together(fleet: Fleet) -> None:
    async with fleet.process() as (process, wire):
        wire.open_.clear()
        calls = [asyncio.create_task(process.lock(f"n{number}").acquire()) for number in range(301)]
        await fleet.clock.settle()
        wire.open_.set()
        await asyncio.gather(*calls)
        sizes = [len(batch) for batch in wire.batches]
        # Where requests leave at once the first one travels alone, and behind what is under way goes half of the rest.
        assert sizes[:3] == ([1, 128, 86] if isinstance(wire, SwiftWire) else [128, 128, 45])
        assert wire.sent() == 301
        for call in calls:
            await (await call).release()


class TooFew(SwiftWire):
    """It answers one command less than it was asked."""

    async def apply(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        return (await super().apply(asks))[self.sent() == 1 :]


async def test_too_few_answers_of_a_swift_store_stop_nobody_either(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    async with Process(TooFew(fleet.memory._store(), fleet.clock), fleet.clock) as process:
        with pytest.raises(BackendError, match="failed"):
            await process.lock().acquire()
        assert "broke its promise" in caplog.text
        await (await process.lock().acquire()).release()
        assert empty(await fleet.state("lock:x"))


@pytest.mark.parametrize("kind", ["raises", "answers too little"])
async def test_a_store_that_breaks_its_promise_stops_nobody(
    kind: str, fleet: Fleet, wire: Observed, caplog: pytest.LogCaptureFixture
) -> None:
    async with Process(wire, fleet.clock) as process:
        if kind == "raises":
            wire.fault = ZeroDivisionError("secret")
        else:
            wire.short = True
        with pytest.raises(BackendError, match=r"failed: (ZeroDivisionError|RuntimeError)") as caught:
            await process.lock().acquire()
        assert "secret" not in str(caught.value)
        assert "broke its promise" in caplog.text
        wire.fault, wire.short = None, False
        await fleet.clock.advance(0.1)
        assert empty(await fleet.state("lock:x"))
        await (await process.lock().acquire()).release()


async def test_a_fault_in_one_callers_code_does_not_stop_the_others(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet.process() as (process, _):

        def faulty(answer: Answer) -> None:
            raise ZeroDivisionError

        process.crew.courier.post("lock:y", Release("token"), faulty)
        await (await process.lock().acquire()).release()
        assert "'lock:y' could not be handed over" in caplog.text


@pytest.mark.parametrize("begun", [True, False])
async def test_a_lane_that_somebody_cancelled_answers_everybody_and_is_replaced(
    begun: bool, fleet: Fleet, wire: Observed
) -> None:
    async with Process(wire, fleet.clock) as process:
        wire.open_.clear()
        answers: list[Answer] = []
        courier = process.crew.courier
        courier.post("lock:a", Acquire("token", Mode.WRITE, 1000), answers.append)
        if begun:
            await fleet.clock.settle()
            courier.post("lock:a", Release("another"), answers.append)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            if "_carry_on" in repr(task):
                task.cancel()
        await fleet.clock.settle()
        assert [str(answer) for answer in answers] == [str(closed(sent=True))] * (1 + begun)
        wire.open_.set()
        await (await process.lock("a").acquire()).release()
        assert empty(await fleet.state("lock:a"))


async def test_lanes_of_keys_that_are_used_no_more_are_forgotten(fleet: Fleet, wire: Observed) -> None:
    async with Process(wire, fleet.clock) as process:
        for number in range(1000):
            await (await process.lock(f"n{number}").acquire()).release()
        assert len(process.crew.courier._lanes) <= 256


async def test_a_call_that_is_given_up_is_cancelled_and_the_lane_goes_on(fleet: Fleet) -> None:
    async with fleet.process() as (process, wire):
        wire.hangs = lambda command: isinstance(command, Acquire)
        call = asyncio.create_task(process.lock().acquire())
        await fleet.clock.advance(4.9)
        assert wire.broken_off == 0
        await fleet.clock.advance(0.2)
        assert wire.broken_off == 1
        with pytest.raises(BackendError, match="within 5 s"):
            await call
        wire.hangs = lambda command: False
        await (await process.lock().acquire()).release()


async def test_a_batch_that_hangs_does_not_use_up_the_time_of_an_urgent_command(fleet: Fleet) -> None:
    async with fleet.process() as (process, wire):
        answers: list[Answer] = []
        wire.hangs = lambda command: isinstance(command, Acquire)
        courier = process.crew.courier
        courier.post("lock:a", Acquire("token", Mode.WRITE, 1000), lambda answer: None, lane="apart")
        await fleet.clock.advance(1)
        courier.post("lock:b", Release("another"), answers.append, lane="apart", bound=0.3)
        await fleet.clock.advance(0.29)
        assert not answers
        await fleet.clock.advance(0.02)
        assert len(answers) == 1


def test_windows_and_places_follow_the_slowest_recent_reply() -> None:
    clock = ManualClock()
    pace = Pace(clock, 3.0)
    assert (pace.claim, pace.place) == (CLAIM, 3000)
    pace.took(0.1)
    assert (pace.claim, pace.place) == (CLAIM, 3000)
    pace.took(2.5)
    pace.took(0.1)
    assert (pace.claim, pace.place) == (5000, 10_000)
    # It is remembered for five seconds at least, and forgotten after ten.
    clock.jump(5.1)
    pace.took(0.2)
    assert (pace.claim, pace.place) == (5000, 10_000)
    clock.jump(5.1)
    pace.took(0.2)
    assert (pace.claim, pace.place) == (400, 3000)
    # After a long silence nothing old counts.
    pace.took(2.5)
    clock.jump(60)
    pace.took(0.01)
    assert (pace.claim, pace.place) == (CLAIM, 3000)


async def test_the_pace_travels_with_the_commands(fleet: Fleet) -> None:
    async with fleet.process() as (process, wire), fleet.direct() as other:
        held = await other.lock().acquire()
        wire.coming = 1.0
        waiter = asyncio.create_task(process.lock().acquire())
        await fleet.clock.advance(4)
        (last,) = wire.batches[-1]
        assert isinstance(last.command, Acquire)
        assert last.command.place >= 4000
        assert last.claim >= 2000
        await held.release()
        wire.coming = 0
        await fleet.clock.advance(2)
        await (await waiter).release()
