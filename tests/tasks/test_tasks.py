"""What a body may do, and what becomes of it."""

import asyncio
import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import pairwise
from types import FrameType

import pytest

from grelmicro_fastapi import Grelmicro
from grelmicro_fastapi.coordination import LeaderElection, Leadership, Lock
from grelmicro_fastapi.errors import NotLeaderError, NotRunningError, SettingsValidationError
from grelmicro_fastapi.providers.memory import MemoryProvider
from grelmicro_fastapi.tasks import TaskContext, TaskHealth, Tasks
from grelmicro_fastapi.testing.clock import ManualClock
from tests.tasks.fleet import fleet

pytestmark = pytest.mark.anyio


def health(tasks: Tasks) -> TaskHealth:
    (only,) = tasks.health()
    return only


async def test_an_interval_starts_with_a_run_and_goes_on_in_each_process() -> None:
    runs: list[float] = []
    async with fleet(1) as (clock, processes):
        tasks = Tasks(backend=processes[0])

        @tasks.every(30)
        async def tick() -> None:
            runs.append(clock.now())

        async with tasks:
            await clock.advance(95)
            assert health(tasks).stage == "waiting"
            assert health(tasks).next_run
    assert runs == pytest.approx([1000, 1030, 1060, 1090], abs=0.1)


async def test_runs_never_overlap_and_those_that_came_meanwhile_are_skipped() -> None:
    starts: list[float] = []
    async with fleet(1) as (clock, processes):
        tasks = Tasks(backend=processes[0])

        @tasks.every(10)
        async def slow() -> None:
            starts.append(clock.now())
            done = asyncio.Event()
            clock.call_later(25, done.set)
            await done.wait()

        async with tasks:
            await clock.advance(60)
            assert health(tasks).skipped >= 4
    assert starts == pytest.approx([1000, 1025, 1050], abs=0.1)


async def test_a_failure_is_logged_once_with_its_name_counted_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with fleet(1) as (clock, processes):
        tasks = Tasks(backend=processes[0])

        @tasks.every(10)
        async def sweep() -> None:
            raise ValueError("broken")

        async with tasks:
            await clock.settle()
            assert [record.levelname for record in caplog.records] == ["ERROR"]
            assert "'sweep'" in caplog.text
            assert "ValueError: broken" in caplog.text
            await clock.advance(25)
            seen = health(tasks)
    assert (seen.runs, seen.failures, seen.consecutive_failures) == (3, 3, 3)
    assert seen.last_error == "ValueError: broken"
    assert seen.last_success is None


async def test_a_success_ends_the_row_of_failures() -> None:
    async with fleet(1) as (clock, processes):
        tasks = Tasks(backend=processes[0])
        fails = [True, True, False]

        @tasks.every(10)
        async def sweep() -> None:
            if fails.pop(0):
                raise ValueError("broken")

        async with tasks:
            await clock.advance(25)
            seen = health(tasks)
    assert (seen.failures, seen.consecutive_failures, seen.last_error) == (2, 0, None)
    assert seen.last_success


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), StopIteration(), asyncio.CancelledError()])
async def test_no_exception_of_a_body_gets_any_further(error: BaseException) -> None:
    async with fleet(1) as (clock, processes):
        tasks = Tasks(backend=processes[0])

        @tasks.every(10)
        async def wild() -> None:
            raise error

        async with tasks:
            await clock.advance(15)
            assert (health(tasks).runs, health(tasks).failures) == (2, 2)


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()])
async def test_no_exception_of_a_thread_gets_any_further(error: BaseException) -> None:
    provider, went_on = MemoryProvider(), asyncio.Event()
    tasks = Tasks(backend=provider)
    loop, runs = asyncio.get_running_loop(), list[None]()

    @tasks.every(0.05)
    def wild() -> None:
        runs.append(None)
        if len(runs) > 1:
            loop.call_soon_threadsafe(went_on.set)
        raise error

    async with provider, tasks:
        await asyncio.wait_for(went_on.wait(), 10)
        assert health(tasks).failures


async def test_a_run_that_hangs_is_seen_and_ended_by_its_timeout() -> None:
    ended: list[str] = []
    async with fleet(1) as (clock, processes):
        tasks = Tasks(backend=processes[0])

        @tasks.every(60, timeout=20)
        async def hang() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("ended")

        async with tasks:
            await clock.advance(19)
            seen = health(tasks)
            assert (seen.stage, seen.running_since is not None) == ("running", True)
            assert not ended
            await clock.advance(2)
            assert ended == ["ended"]
            assert seen.last_error
            assert "timeout of 20 s" in seen.last_error
            assert seen.running_since is None


async def test_a_body_that_ignores_its_cancellation_is_called_stuck_and_nothing_runs_beside_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = asyncio.Event()
    runs: list[None] = []
    async with fleet(1) as (clock, processes):
        tasks = Tasks(backend=processes[0])

        @tasks.every(30, timeout=1)
        async def stubborn() -> None:
            runs.append(None)
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue

        async with tasks:
            await clock.advance(100)
            assert health(tasks).stuck
            assert len(runs) == 1
            assert caplog.text.count("'stubborn' ignores its cancellation") == 1
            release.set()
            await clock.advance(1)
            assert not health(tasks).stuck
            await clock.advance(31)
            assert len(runs) > 1


async def test_closing_does_not_wait_for_ever_for_a_body_that_ignores_its_cancellation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = asyncio.Event()
    async with fleet(1) as (clock, processes):
        tasks = Tasks(backend=processes[0])

        @tasks.every(30)
        async def stubborn() -> None:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue

        await tasks.open()
        await clock.settle()
        closing = asyncio.create_task(tasks.close())
        await clock.advance(9)
        assert not closing.done()
        await clock.advance(2)
        assert closing.done()
        assert "'stubborn' did not end within 10 s" in caplog.text
        release.set()


async def test_what_ends_although_this_process_leads_starts_again_after_growing_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    starts: list[float] = []
    async with fleet(1) as (clock, processes):
        tasks = Tasks(backend=processes[0])

        @tasks.leader_only()
        async def consume(leadership: Leadership) -> None:
            starts.append(clock.now())

        async with tasks:
            await clock.advance(400)
            assert health(tasks).failures == len(starts)
    pauses = [after - before for before, after in pairwise(starts)]
    for number, pause in enumerate(pauses):
        assert pause == pytest.approx(min(2**number, 60), rel=0.21, abs=0.1)
    assert len(pauses) >= 8
    assert caplog.text.count("RuntimeError: it ended although this process leads") == len(starts)


async def test_stop_ends_the_task_and_leaves_the_others() -> None:
    runs: list[str] = []
    async with fleet(1) as (clock, processes):
        tasks = Tasks(backend=processes[0])

        @tasks.every(10, on_error="stop")
        async def once() -> None:
            runs.append("once")
            raise ValueError("broken")

        @tasks.every(10)
        async def again() -> None:
            runs.append("again")

        async with tasks:
            await clock.advance(25)
            assert [seen.stage for seen in tasks.health()] == ["failed", "waiting"]
    assert runs == ["once", "again", "again", "again"]


async def test_a_leader_whose_last_task_has_stopped_lets_another_process_lead() -> None:
    led: list[int] = []
    async with fleet(2) as (clock, processes), AsyncExitStack() as stack:
        for number, process in enumerate(processes):
            tasks = Tasks(backend=process)

            @tasks.leader_only(every=10, on_error="stop")
            async def lead(number: int = number) -> None:
                led.append(number)
                if number == 0:
                    raise ValueError("broken")

            await stack.enter_async_context(tasks)
            await clock.settle()
        await clock.advance(30)
    assert led[:2] == [0, 1]
    assert set(led[1:]) == {1}


@pytest.fixture
def told() -> Iterator[list[int]]:
    """The signals that the server was sent."""
    numbers: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        numbers.append(number)

    before = signal.signal(signal.SIGTERM, note)
    yield numbers
    signal.signal(signal.SIGTERM, before)


async def test_exit_tells_the_server_to_stop(told: list[int]) -> None:
    async with fleet(1) as (clock, processes):
        tasks = Tasks(backend=processes[0])

        @tasks.every(10, on_error="exit")
        async def essential() -> None:
            raise ValueError("broken")

        async with tasks:
            await clock.advance(25)
            assert (health(tasks).stage, health(tasks).runs) == ("failed", 1)
    assert told == [signal.SIGTERM]


async def test_jitter_starts_each_run_a_little_later_and_shifts_none() -> None:
    late: list[float] = []
    async with fleet(1) as (clock, processes):
        tasks = Tasks(backend=processes[0])

        @tasks.every(10, jitter=5)
        async def tick() -> None:
            late.append(clock.now() - 1000 - 10 * len(late))

        async with tasks:
            await clock.advance(300)
    assert all(-0.1 < seconds < 5.2 for seconds in late)
    assert len({round(seconds, 2) for seconds in late}) > len(late) / 2


async def test_a_def_body_runs_in_a_thread_and_may_take_locks() -> None:
    provider = MemoryProvider()
    tasks = Tasks()
    seen: list[tuple[bool, int]] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    @tasks.every(60)
    def blocking(context: TaskContext) -> None:
        with Lock("x").from_thread as guard:
            seen.append((threading.current_thread() is threading.main_thread(), guard.fencing_token))
        loop.call_soon_threadsafe(done.set)

    async with Grelmicro(uses=[tasks, provider]):
        await asyncio.wait_for(done.wait(), 10)
    assert seen == [(False, 1)]


async def test_a_def_body_that_leads_learns_that_the_process_resigns_and_keeps_others_out_until_it_returns() -> None:
    clock = ManualClock()
    provider = MemoryProvider(clock=clock)
    started, let_go = threading.Event(), threading.Event()
    valid: list[bool] = []

    tasks = Tasks(backend=provider)

    @tasks.leader_only()
    def work(leadership: Leadership) -> None:
        valid.append(leadership.valid)
        started.set()
        let_go.wait(10)
        valid.append(leadership.valid)
        leadership.check()

    other = LeaderElection("tasks", backend=provider)
    async with provider:
        await tasks.open()
        await clock.settle()
        assert await asyncio.to_thread(started.wait, 10)
        # Another process: a provider of its own would be as good, but this election only shares the store.
        rival = MemoryProvider(clock=clock)
        rival._states = provider._states
        other = LeaderElection("tasks", backend=rival)
        async with rival, other:
            closing = asyncio.create_task(tasks.close())
            await clock.advance(3)
            assert not other.is_leader()
            let_go.set()
            await closing
            await clock.advance(3)
            assert other.is_leader()
    assert valid == [True, False]


async def test_a_body_gets_what_it_is_annotated_with_whatever_its_parameters_are_called() -> None:
    got: list[object] = []
    async with fleet(1) as (clock, processes):
        tasks = Tasks(backend=processes[0])

        @tasks.leader_only(every=10)
        async def sweep(a: Leadership, b: "TaskContext", c: int = 3) -> None:
            got.extend([a.term, b.name, b.leadership is a, b.fencing_token, c])

        async with tasks:
            await clock.settle()
    assert got == [1, "sweep", True, 1, 3]


def test_a_body_that_asks_for_what_no_task_has_is_refused() -> None:
    async def body(request: int) -> None: ...

    with pytest.raises(SettingsValidationError, match="'request'"):
        Tasks().every(3)(body)


@pytest.mark.parametrize(
    "options", [{"jitter": -1}, {"timeout": 0}, {"on_error": "retry"}, {"jitter": float("nan")}, {"nonsense": 1}]
)
def test_an_option_that_cannot_be_is_refused_at_registration(options: dict[str, object]) -> None:
    with pytest.raises((SettingsValidationError, TypeError)):
        Tasks().every(3, **options)(lambda: None)  # type: ignore[arg-type]  # on purpose


def test_two_tasks_of_one_name_are_refused_also_by_include() -> None:
    one, two = Tasks(), Tasks()
    one.every(3, name="x")(lambda: None)
    two.every(3, name="x")(lambda: None)
    with pytest.raises(SettingsValidationError, match="two tasks are called 'x'"):
        one.include(two)


async def test_included_tasks_run_with_the_others() -> None:
    runs: list[str] = []
    async with fleet(1) as (clock, processes):
        tasks, more = Tasks(backend=processes[0]), Tasks()

        @tasks.every(10)
        async def one() -> None:
            runs.append("one")

        @more.leader_only(every=10)
        async def two() -> None:
            runs.append("two")

        tasks.include(more)
        async with tasks:
            await clock.settle()
    assert sorted(runs) == ["one", "two"]


async def test_what_is_registered_too_late_is_refused() -> None:
    async with fleet(1) as (_, processes):
        tasks = Tasks(backend=processes[0])
        async with tasks:
            with pytest.raises(SettingsValidationError, match="too late"):
                tasks.every(3)(lambda: None)
        tasks.every(3)(lambda: None)


@pytest.mark.parametrize(
    ("argument", "variable", "leads"),
    [
        (None, None, True),
        (None, "false", False),
        (None, "0", False),
        (None, "true", True),
        (False, "true", False),
        (True, "false", True),
    ],
)
async def test_a_process_that_must_not_lead_does_not(
    argument: bool | None, variable: str | None, leads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable is None:
        monkeypatch.delenv("GREL_CANDIDATE", raising=False)
    else:
        monkeypatch.setenv("GREL_CANDIDATE", variable)
    led: list[None] = []
    async with fleet(1) as (clock, processes):
        tasks = Tasks(backend=processes[0], candidate=argument)

        @tasks.leader_only(every=10)
        async def lead() -> None:
            led.append(None)

        async with tasks:
            await clock.advance(30)
            assert tasks.election.is_leader() is leads
            assert health(tasks).stage == ("waiting" if leads else "standby")
    assert bool(led) is leads


async def test_tasks_that_are_opened_twice_on_one_loop_run_once() -> None:
    runs: list[None] = []
    async with fleet(1) as (clock, processes):
        tasks = Tasks(backend=processes[0])

        @tasks.every(10)
        async def tick() -> None:
            runs.append(None)

        async with tasks:
            async with tasks:
                await clock.settle()
            await clock.advance(10.5)
        await clock.advance(60)
    assert len(runs) == 2
    assert not tasks.health()


def test_each_loop_runs_them_for_itself_and_one_of_them_leads() -> None:
    provider = MemoryProvider()
    tasks = Tasks(backend=provider)
    met = threading.Barrier(2)
    loops: list[asyncio.AbstractEventLoop] = []
    leading: list[bool] = []
    seen = threading.Event()

    @tasks.every(60)
    async def tick() -> None:
        loops.append(asyncio.get_running_loop())

    @tasks.leader_only(every=60)
    async def lead() -> None:
        leading.append(True)
        seen.set()

    async def one() -> None:
        async with provider, tasks:
            await asyncio.to_thread(seen.wait, 10)
            await asyncio.to_thread(met.wait, 10)
            assert len(tasks.health()) == 2

    threads = [threading.Thread(target=asyncio.run, args=(one(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(loops)) == 2
    assert leading[0]


async def test_without_a_store_it_says_so_and_stays_closed() -> None:
    tasks = Tasks(backend=MemoryProvider())
    for _ in range(2):
        with pytest.raises(NotRunningError):
            await tasks.open()
    assert not tasks.health()


async def test_a_cron_task_of_each_process_follows_its_wall_clock_also_when_that_is_set() -> None:
    fired: list[str] = []
    async with fleet(1) as (clock, processes):
        tasks = Tasks(backend=processes[0])

        @tasks.cron("0 10 * * *")
        async def at_ten(context: TaskContext) -> None:
            assert context.scheduled_at
            fired.append(f"{context.scheduled_at:%d %H:%M}")

        async with tasks:
            # It is eight, and somebody sets the clock to half past nine.
            await clock.advance(60)
            clock.step_wall(5400)
            await clock.advance(1800)
            assert fired == ["15 10:00"]
            await clock.advance(86_400)
    assert fired == ["15 10:00", "16 10:00"]


async def test_the_work_of_a_lost_term_is_cancelled_and_done_by_the_next_leader() -> None:
    events: list[str] = []
    async with fleet(2) as (clock, processes), AsyncExitStack() as stack:
        for number, process in enumerate(processes):
            tasks = Tasks(backend=process)

            @tasks.leader_only()
            async def lead(leadership: Leadership, number: int = number) -> None:
                events.append(f"{number} starts term {leadership.term}")
                try:
                    await asyncio.Event().wait()
                finally:
                    events.append(f"{number} ends")
                    with pytest.raises(NotLeaderError):
                        leadership.check()

            await stack.enter_async_context(tasks)
            await clock.settle()
        processes[0].wire.cut = True
        await clock.advance(16)
        processes[0].wire.cut = False
        await clock.advance(16)
        assert events == ["0 starts term 1", "0 ends", "1 starts term 2"]


async def test_an_interval_of_a_leader_goes_on_with_the_next_term() -> None:
    terms: list[int] = []
    async with fleet(1) as (clock, processes):
        tasks = Tasks(backend=processes[0])

        @tasks.leader_only(every=10)
        async def sweep(leadership: Leadership) -> None:
            terms.append(leadership.term)

        async with tasks:
            await clock.advance(15)
            processes[0].wire.cut = True
            await clock.advance(20)
            processes[0].wire.cut = False
            await clock.advance(20)
            assert health(tasks).failures == 0
    assert terms[:3] == [1, 1, 1]
    assert set(terms[3:]) == {2}


async def test_a_task_that_takes_a_lock_while_the_process_shuts_down_has_not_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with fleet(1) as (clock, processes):
        tasks = Tasks(backend=processes[0])

        @tasks.every(10)
        async def work() -> None:
            async with Lock("x", backend=processes[0]):
                pass

        async with tasks:
            await clock.settle()
            processes[0].crew().drain()
            with caplog.at_level(logging.WARNING):
                await clock.advance(20)
            assert health(tasks).failures == 0
    assert not caplog.records


async def test_a_body_that_asks_for_a_leadership_of_its_own_and_has_none_has_failed() -> None:
    async with fleet(1) as (clock, processes):
        tasks = Tasks(backend=processes[0])

        @tasks.every(10)
        async def work() -> None:
            raise NotLeaderError("another process leads")

        async with tasks:
            await clock.advance(15)
            assert (health(tasks).runs, health(tasks).failures) == (2, 2)
