"""The three ways in which a task comes to run: in each process, once in the fleet, or where this process leads."""

import asyncio
import logging
import math
from datetime import UTC, datetime
from functools import partial

from grelmicro_fastapi.coordination.backend import Source
from grelmicro_fastapi.coordination.futures import sleep
from grelmicro_fastapi.coordination.leaderelection import LeaderElection
from grelmicro_fastapi.coordination.leadership import Leadership
from grelmicro_fastapi.errors import CoordinationError, DrainingError, NotLeaderError
from grelmicro_fastapi.tasks.runner import Runner
from grelmicro_fastapi.tasks.schedule import Every, Schedule
from grelmicro_fastapi.tasks.spec import TaskContext
from grelmicro_fastapi.tasks.ticks import Claim, Due, Ticks

_log = logging.getLogger("grelmicro_fastapi.tasks")

_OUTAGE = 5.0
"""Seconds between two looks at a store that does not answer."""


async def in_each_process(runner: Runner, schedule: Schedule) -> None:
    """An interval starts with a run; other schedules are due by this host's clock."""
    if isinstance(schedule, Every):
        await _regularly(runner, schedule.seconds, TaskContext(runner.spec.name))
    while True:
        now = runner.clock.wall()
        due = schedule.after(now)
        await _wait(runner, due - now, due)
        await runner.jitter()
        if not await runner.run(TaskContext(runner.spec.name, _time(due))):
            await runner.back_off()


async def once_in_the_fleet(runner: Runner, schedule: Schedule, source: Source | None) -> None:
    """Each tick in one process, by the store's clock."""
    ticks = Ticks(runner.spec.name, schedule, runner.spec.lease, source)
    seen, down = -math.inf, False
    while True:
        try:
            due = await ticks.due()
            down = False
            if due.instant is not None and due.instant > seen:
                seen = due.instant
                await runner.jitter()
                claim = await _claim(ticks, due, runner, schedule)
                if claim:
                    await _run(ticks, claim, runner, due.passed)
                    seen = -math.inf if claim.again else seen
                    continue
        except DrainingError:
            return
        except CoordinationError as error:
            if not down:
                _log.warning("task %r cannot claim its ticks, trying again: %s", runner.spec.name, error)
            down, seen, runner.health.stage = True, -math.inf, "backoff"
            await sleep(runner.clock, min(_OUTAGE, max(0.1, schedule.after(0.0))))
            continue
        following = schedule.after(due.now)
        await _wait(runner, following - due.now, following)


async def where_we_lead(runner: Runner, schedule: Every | None, election: LeaderElection) -> None:
    """As long as this process leads: again and again, or one body that goes on."""
    campaign = election.campaign()
    while True:
        runner.health.stage = "standby"
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
    context = TaskContext(runner.spec.name, leadership=leadership)
    if schedule:
        await _regularly(runner, schedule.seconds, context)
    while True:
        if await runner.run(context):
            _log.warning("task %r ended although this process leads: it starts again", runner.spec.name)
        await runner.back_off()


async def _regularly(runner: Runner, seconds: float, context: TaskContext) -> None:
    clock = runner.clock
    await runner.jitter()
    due = clock.now()
    while True:
        succeeded = await runner.run(context)
        due += seconds
        if (behind := clock.now() - due) > 0:
            runner.health.skipped += math.ceil(behind / seconds)
            due = clock.now()
        await _wait(runner, due - clock.now(), clock.wall() + due - clock.now())
        if not succeeded and seconds < 1.0:
            await runner.back_off()
            due = clock.now()


async def _claim(ticks: Ticks, due: Due, runner: Runner, schedule: Schedule) -> Claim | None:
    spec, health = runner.spec, runner.health
    instant = due.instant
    assert instant is not None
    # An interval's tick may be claimed until the next one; a time of day only for a while.
    grace = math.inf if isinstance(schedule, Every) else spec.grace
    if due.now - instant > grace:
        if due.passed:
            health.missed += 1
            _log.warning("task %r missed its run of %s: nobody was there", spec.name, _time(instant))
        return None
    claim = await ticks.claim(instant, catch_up=spec.catch_up)
    if claim and (claim.died is not None or claim.again):
        health.missed += 1
        died = claim.instant if claim.died is None else claim.died
        what = "it is done again" if claim.again else "it is not done again"
        _log.warning("task %r: the run of %s never ended, its process died: %s", spec.name, _time(died), what)
    return claim


async def _run(ticks: Ticks, claim: Claim, runner: Runner, passed: int) -> None:
    context = TaskContext(runner.spec.name, _time(claim.instant), passed + (claim.died is not None))
    try:
        await runner.run(context)
    except BaseException as error:
        await ticks.end(claim, error)
        raise
    await ticks.end(claim, None)


async def _wait(runner: Runner, seconds: float, until: float) -> None:
    runner.health.stage = "waiting" if runner.health.stage != "standby" else "standby"
    runner.health.next_run = _time(until)
    if math.isinf(seconds):
        await asyncio.get_running_loop().create_future()
    # Boot clocks and the store's clock may differ by a little: a moment late is right, a moment early is a wasted look.
    await sleep(runner.clock, max(seconds, 0.0) + 0.002)


def _time(instant: float) -> datetime:
    try:
        return datetime.fromtimestamp(instant, UTC)
    except (OverflowError, ValueError, OSError):
        return datetime.max.replace(tzinfo=UTC)
