"""Background tasks: decorators that only register, and what runs them while the app is open."""

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, cast

from grelmicro_fastapi.coordination.backend import Source, crew_of
from grelmicro_fastapi.coordination.leaderelection import LeaderElection
from grelmicro_fastapi.errors import NotRunningError, SettingsValidationError
from grelmicro_fastapi.settings import read_env
from grelmicro_fastapi.tasks.health import TaskHealth
from grelmicro_fastapi.tasks.loops import in_each_process, once_in_the_fleet, where_we_lead
from grelmicro_fastapi.tasks.runner import Runner, Stopped
from grelmicro_fastapi.tasks.schedule import Cron, Every
from grelmicro_fastapi.tasks.spec import Body, TaskOptions, TaskSpec, wanted

_log = logging.getLogger("grelmicro_fastapi.tasks")

BodyT = TypeVar("BodyT", bound=Body)
Where = Literal["process", "cluster"]


class Tasks:
    """Background tasks, registered like routes and run while the app that uses them is open.

        tasks = Tasks()

        @tasks.leader_only(every=30)
        async def sweep(leadership: Leadership) -> None: ...

        micro = Grelmicro(uses=[RedisProvider(), tasks])

    Bodies are `async` or `def` (those run in a worker thread, and cannot be cancelled: let them poll
    `leadership.check()`), and may ask for a `Leadership` or a `TaskContext` by annotation. Runs of one task in one
    process never overlap. `election` is who leads for `leader_only`; by default one called "tasks". With
    `candidate=False`, or `GREL_CANDIDATE=false` in the environment, this process never leads. `backend` is that of
    `Lock`.
    """

    def __init__(
        self, *, election: LeaderElection | None = None, backend: Source | None = None, candidate: bool | None = None
    ) -> None:
        self.election = election or LeaderElection("tasks", backend=backend)
        self._candidate = candidate
        self._source = backend
        self.specs: list[TaskSpec] = []
        """What was registered, in order."""
        self._runners: list[Runner] = []
        self._host: asyncio.Task[None] | None = None

    def every(
        self, seconds: float, *, on: Where = "process", catch_up: bool = False, **options: Unpack[TaskOptions]
    ) -> Callable[[BodyT], BodyT]:
        """Run every so many seconds: in each process, or with `on="cluster"` each time in one process of the fleet.

        A tick of the fleet runs at most once, and is reported as missed if its process died; with `catch_up` it runs
        again then, so at least once.
        """
        if on == "cluster" and seconds < 0.1:
            raise SettingsValidationError(f"a task of the fleet runs at most every 0.1 s, not every {seconds!r} s")
        return self._register(options, where=on, schedule=Every(seconds), catch_up=catch_up)

    def cron(
        self,
        expression: str,
        *,
        on: Where = "process",
        timezone: str = "UTC",
        catch_up: bool = False,
        grace: float = 60.0,
        **options: Unpack[TaskOptions],
    ) -> Callable[[BodyT], BodyT]:
        """Run at the times of a cron expression.

        With `on="cluster"`, a time that passed while nobody was there is run once if that was less than `grace` seconds
        ago, and otherwise reported as missed. `catch_up` is as for `every`.
        """
        schedule = Cron(expression, timezone)
        return self._register(options, where=on, schedule=schedule, catch_up=catch_up, grace=grace)

    def leader_only(self, *, every: float | None = None, **options: Unpack[TaskOptions]) -> Callable[[BodyT], BodyT]:
        """Run where this process leads: every so many seconds, or without `every` one body for as long as it leads.

        The body is cancelled when the term ends.
        """
        return self._register(options, where="leader", schedule=None if every is None else Every(every))

    def include(self, other: "Tasks") -> None:
        """Run another collection's tasks too, under our election and backend."""
        for spec in other.specs:
            self._add(spec)

    def health(self) -> list[TaskHealth]:
        """How each task is doing in this process."""
        return [runner.health for runner in self._runners]

    async def open(self) -> None:
        """Start on the running loop. Raises `NotRunningError` if started already."""
        if self._host:
            raise NotRunningError("these tasks run already: one app, and one event loop, can run them")
        crew = crew_of(self._source)
        self._runners = [Runner(spec, crew.clock) for spec in self.specs]
        leads = any(spec.where == "leader" for spec in self.specs) and self._is_candidate()
        if leads:
            await self.election.open()
        started = asyncio.Event()
        self._host = asyncio.get_running_loop().create_task(self._hold(started, leads))
        await started.wait()

    async def close(self) -> None:
        """Stop: leaders' bodies first, then resign, then the rest. Whatever runs has ended when this returns."""
        host, self._host = self._host, None
        if host:
            host.cancel()
            await asyncio.wait([host])

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _hold(self, started: asyncio.Event, leads: bool) -> None:
        loop = asyncio.get_running_loop()
        here = [runner for runner in self._runners if leads or runner.spec.where != "leader"]
        running = [loop.create_task(self._supervise(runner)) for runner in here]
        started.set()
        try:
            await loop.create_future()
        finally:
            if leads:
                await self.election.close()
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)

    async def _supervise(self, runner: Runner) -> None:
        spec = runner.spec
        while True:
            try:
                if spec.where == "leader":
                    schedule = spec.schedule if isinstance(spec.schedule, Every) else None
                    await where_we_lead(runner, schedule, self.election)
                elif spec.schedule and spec.where == "cluster":
                    await once_in_the_fleet(runner, spec.schedule, self._source)
                elif spec.schedule:
                    await in_each_process(runner, spec.schedule)
                runner.health.stage = "stopped"
                return
            except Stopped:
                runner.health.stage = "failed"
                return
            except Exception:
                # Whatever this is, the server must not go down with it, nor go on without it.
                _log.exception("task %r: its loop failed, starting it again", spec.name)
                runner.health.consecutive_failures += 1
                await runner.back_off()

    def _register(self, options: TaskOptions, **fixed: Any) -> Callable[[BodyT], BodyT]:
        def register(body: BodyT) -> BodyT:
            wanted(body)
            name = options.get("name") or str(getattr(body, "__name__", repr(body)))
            rest = {option: value for option, value in options.items() if option != "name"}
            self._add(TaskSpec(name, body, **fixed, **cast("dict[str, Any]", rest)))
            return body

        return register

    def _add(self, spec: TaskSpec) -> None:
        if any(other.name == spec.name for other in self.specs):
            raise SettingsValidationError(f"two tasks are called {spec.name!r}: give one a name=")
        self.specs.append(spec)

    def _is_candidate(self) -> bool:
        if self._candidate is not None:
            return self._candidate
        return (read_env("GREL_CANDIDATE") or "true").strip().lower() not in {"0", "false", "no", "off"}
