"""What runs the tasks of one opened collection on one loop, in a task of its own that no body can bring down."""

import asyncio
import logging

from grelmicro_fastapi.coordination.backend import Source
from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.coordination.futures import settle
from grelmicro_fastapi.coordination.leaderelection import LeaderElection
from grelmicro_fastapi.tasks.loops import in_each_process, once_in_the_fleet, where_we_lead
from grelmicro_fastapi.tasks.runner import Runner, Stopped
from grelmicro_fastapi.tasks.schedule import Every
from grelmicro_fastapi.tasks.spec import TaskSpec

_log = logging.getLogger("grelmicro_fastapi.tasks")

_GOODBYE = 10.0
"""Seconds that cancelled bodies get to end."""


class Host:
    """Runs so many tasks from `start` to `stop`. With an `election` it stands, and leads."""

    def __init__(
        self, specs: list[TaskSpec], clock: Clock, source: Source | None, election: LeaderElection | None
    ) -> None:
        self.users = 1
        self.runners = [Runner(spec, clock) for spec in specs]
        self._clock = clock
        self._source = source
        self._election = election
        self._leaders = sum(spec.where == "leader" for spec in specs)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Stand if there is something to lead, and start the rest."""
        if self._election and self._leaders:
            await self._election.open()
        else:
            self._election = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Leaders' bodies first, then resign, then the rest. Bodies have ended then, or are called stuck."""
        if self._task:
            self._task.cancel()
            # Not awaited: cancelling whoever stops us must not leave tasks behind that nobody looks after.
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        running: dict[asyncio.Task[None], Runner] = {}
        try:
            for runner in self.runners:
                if runner.spec.where == "leader" and not self._election:
                    runner.rest("standby")
                else:
                    running[loop.create_task(self._supervise(runner))] = runner
            await loop.create_future()
        finally:
            await self._resign()
            for task in running:
                task.cancel()
            await self._wait_out(running)

    async def _resign(self) -> None:
        election, self._election = self._election, None
        if election:
            await election.close()

    async def _wait_out(self, running: dict[asyncio.Task[None], Runner]) -> None:
        late: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(_GOODBYE, lambda: settle(late, None))
        try:
            while not late.done() and (left := [task for task in running if not task.done()]):
                await asyncio.wait([*left, late], return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
        for task, runner in running.items():
            if not task.done():
                _log.critical("task %r did not end within %g s: it is left to itself", runner.spec.name, _GOODBYE)

    async def _supervise(self, runner: Runner) -> None:
        spec = runner.spec
        while True:
            try:
                if spec.where == "leader" and self._election:
                    schedule = spec.schedule if isinstance(spec.schedule, Every) else None
                    await where_we_lead(runner, schedule, self._election)
                elif spec.schedule and spec.where == "cluster":
                    await once_in_the_fleet(runner, spec.schedule, self._source)
                elif spec.schedule:
                    await in_each_process(runner, spec.schedule)
                runner.rest("stopped")
                return
            except Stopped:
                runner.rest("failed")
                break
            except Exception:
                # Whatever this is, the server must not go down with it, nor go on without it.
                _log.exception("task %r: its loop failed, starting it again", spec.name)
                runner.health.consecutive_failures += 1
                await runner.back_off()
        if spec.where == "leader":
            self._leaders -= 1
            if not self._leaders:
                # A leader with nothing left to do would keep others from doing it.
                await self._resign()
