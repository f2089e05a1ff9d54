"""The three ways in which a task comes to run: in each process, once in the fleet, or where this process leads."""

import logging
import math
from datetime import UTC, datetime
from functools import partial

from grelmicro_fastapi.coordination.backend import Source
from grelmicro_fastapi.coordination.futures import sleep
from grelmicro_fastapi.coordination.leaderelection import LeaderElection
from grelmicro_fastapi.coordination.leadership import Leadership
from grelmicro_fastapi.errors import CoordinationError, DrainingError, LockNotOwnedError, NotLeaderError
from grelmicro_fastapi.tasks.runner import Runner
from grelmicro_fastapi.tasks.schedule import Every, Schedule
from grelmicro_fastapi.tasks.spec import TaskContext
from grelmicro_fastapi.tasks.ticks import Busy, Claim, Due, Ticks

_log = logging.getLogger("grelmicro_fastapi.tasks")

_OUTAGE = 5.0
"""Seconds between two looks at a store that does not answer."""
_LOOK = 60.0
"""Seconds after which a long wait looks at the clock again: it may have been set, and machines sleep."""


async def in_each_process(runner: Runner, schedule: Schedule) -> None:
    """An interval starts with a run; other schedules are due by this host's clock."""
    if isinstance(schedule, Every):
        await _regularly(runner, schedule.seconds, TaskContext(runner.spec.name))
    while True:
        due = schedule.after(runner.clock.wall())
        runner.rest("waiting", _time(due))
        while (left := due - runner.clock.wall()) > 0:
            await sleep(runner.clock, min(left, _LOOK) + 0.002)
        if left < -runner.spec.grace:
            runner.health.missed += 1
            _log.warning("task %r missed its run of %s: this process slept", runner.spec.name, _time(due))
            continue
        await runner.jitter()
        await runner.run(TaskContext(runner.spec.name, _time(due)))


async def once_in_the_fleet(runner: Runner, schedule: Schedule, source: Source | None) -> None:
    """Each tick in one process, by the store's clock."""
    ticks = Ticks(runner.spec.name, schedule, runner.spec.lease, source)
    settled, suspect, down = -math.inf, math.nan, False
    while True:
        try:
            due = await ticks.due()
            down, pause, got = False, schedule.after(due.now) - due.now, None
            if due.instant is not None and due.instant > settled:
                got = await _claim(ticks, due, runner, schedule)
                settled = settled if isinstance(got, Busy) else due.instant
            elif due.open is not None and due.open == suspect:
                got = await _recover(ticks, due.open, runner)
            elif due.open is not None:
                # Its run goes on, or its process died: a lease later we know.
                suspect, pause = due.open, min(pause, runner.spec.lease)
            if isinstance(got, Claim):
                settled = -math.inf
                await _run(ticks, got, runner, due)
                continue
            if isinstance(got, Busy) and got.retry:
                pause = min(pause, got.retry)
        except DrainingError:
            return
        except LockNotOwnedError as error:
            runner.lost(error)
        except CoordinationError as error:
            if not down:
                _log.warning("task %r cannot claim its ticks, trying again: %s", runner.spec.name, error)
            down, settled, runner.health.stage = True, -math.inf, "backoff"
            await sleep(runner.clock, min(_OUTAGE, max(0.1, schedule.after(0.0))))
        else:
            runner.rest("waiting", _time(due.now + pause))
            await _wait(runner, pause)


async def where_we_lead(runner: Runner, schedule: Every | None, election: LeaderElection) -> None:
    """As long as this process leads: again and again, or one body that goes on."""
    campaign = election.campaign()
    while True:
        runner.rest("standby")
        try:
            leadership = await campaign.elected()
        except NotLeaderError:
            # This process shuts down and stands no more.
            return
        try:
            await campaign.run(partial(_lead, runner, schedule), leadership)
        except NotLeaderError:
            continue


async def _lead(runner: Runner, schedule: Every | None, leadership: Leadership) -> None:
    context = TaskContext(runner.spec.name, leadership=leadership, fencing_token=leadership.term)
    if schedule:
        await _regularly(runner, schedule.seconds, context)
    while True:
        # That it has ended is a failure of its own: it is to go on as long as we lead.
        await runner.run(context)
        await runner.back_off()


async def _regularly(runner: Runner, seconds: float, context: TaskContext) -> None:
    clock = runner.clock
    due = clock.now()
    while True:
        await runner.jitter()
        succeeded = await runner.run(context)
        due += seconds
        if (behind := clock.now() - due) > 0:
            runner.health.skipped += math.ceil(behind / seconds)
            due = clock.now()
        if not succeeded and seconds < 1.0:
            await runner.back_off()
            due = clock.now()
        left = due - clock.now()
        runner.rest("waiting", _time(clock.wall() + left))
        await _wait(runner, left)


async def _claim(ticks: Ticks, due: Due, runner: Runner, schedule: Schedule) -> Claim | Busy | None:
    spec = runner.spec
    instant = due.instant
    assert instant is not None
    # An interval's tick may be claimed until the next one; a time of day only for a while.
    if not isinstance(schedule, Every) and due.now - instant > spec.grace:
        # Before the first run, nobody can have missed one.
        if await ticks.write_off(instant) and not due.first:
            runner.missed(due.passed + 1, f"the last of {_time(instant)}: nobody was there, and now it is too late")
        return None
    await runner.jitter()
    got = await ticks.claim(instant, catch_up=spec.catch_up)
    if isinstance(got, Claim):
        if got.died is not None:
            _report_dead(runner, got.died)
        if due.passed and got.died != got.instant:
            runner.missed(due.passed, f"the last before {_time(instant)}: nobody was there, or one took too long")
    return got


async def _recover(ticks: Ticks, instant: float, runner: Runner) -> Claim | Busy | None:
    """See to a run that does not end: its process may be dead."""
    got = await ticks.claim(instant, catch_up=runner.spec.catch_up)
    if not isinstance(got, Claim):
        if got is None and await ticks.write_off(instant):
            _report_dead(runner, instant)
        return got
    _report_dead(runner, instant)
    return got


def _report_dead(runner: Runner, instant: float) -> None:
    what = "it is done again" if runner.spec.catch_up else "it is not done again"
    runner.missed(1, f"that of {_time(instant)} never ended, its process died or was stopped: {what}")


async def _run(ticks: Ticks, claim: Claim, runner: Runner, due: Due) -> None:
    again = claim.died == claim.instant
    missed = 0 if again else due.passed + (claim.died is not None)
    context = TaskContext(runner.spec.name, _time(claim.instant), missed, fencing_token=claim.handle.lease.fence)
    try:
        await runner.run(context)
    except BaseException as error:
        await ticks.end(claim, error)
        raise
    await ticks.end(claim, None)


async def _wait(runner: Runner, seconds: float) -> None:
    clock = runner.clock
    # Boot clocks and the store's clock may differ by a little: a moment late is right, a moment early is a wasted look.
    until = clock.now() + max(seconds, 0.0) + 0.002
    while (left := until - clock.now()) > 0:
        await sleep(clock, min(left, _LOOK))


def _time(instant: float) -> datetime:
    try:
        return datetime.fromtimestamp(instant, UTC)
    except (OverflowError, ValueError, OSError):
        return datetime.max.replace(tzinfo=UTC)
