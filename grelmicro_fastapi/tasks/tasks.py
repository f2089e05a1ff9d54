"""Background tasks: decorators that only register, and what runs them while the app is open."""

import asyncio
import weakref
from collections.abc import Callable
from typing import Any, Literal, TypeVar, Unpack, cast

from grelmicro_fastapi import context
from grelmicro_fastapi.context import Openable
from grelmicro_fastapi.coordination.backend import Source, crew_of
from grelmicro_fastapi.coordination.leaderelection import LeaderElection
from grelmicro_fastapi.errors import SettingsValidationError
from grelmicro_fastapi.settings import flag, read_env
from grelmicro_fastapi.tasks.health import TaskHealth
from grelmicro_fastapi.tasks.host import Host
from grelmicro_fastapi.tasks.schedule import Cron, Every
from grelmicro_fastapi.tasks.spec import Body, TaskOptions, TaskSpec, wanted

BodyT = TypeVar("BodyT", bound=Body)
Where = Literal["process", "cluster"]


class Tasks(Openable):
    """Background tasks, registered like routes and run while the app that uses them is open.

        tasks = Tasks()

        @tasks.leader_only(every=30)
        async def sweep(leadership: Leadership) -> None: ...

        micro = Grelmicro(uses=[RedisProvider(), tasks])

    Bodies are `async` or `def` (those run in a worker thread, and cannot be cancelled: let them poll
    `leadership.check()`), and may ask for a `Leadership` or a `TaskContext` by annotation. Runs of one task in one
    process never overlap. `election` is who leads for `leader_only`; by default one called "tasks". With
    `candidate=False`, or `GREL_CANDIDATE=false` in the environment, this process never leads. `backend` is that of
    `Lock`. They can be opened on several loops, each with runs of its own.
    """

    def __init__(
        self, *, election: LeaderElection | None = None, backend: Source | None = None, candidate: bool | None = None
    ) -> None:
        if not isinstance(cast("object", election), LeaderElection | None):
            raise SettingsValidationError(
                f"election= is a LeaderElection, and no {type(election).__name__}: LeaderElection(name) makes one"
            )
        if candidate is not None:
            flag("candidate=", candidate)
        self.election = election or LeaderElection("tasks", backend=backend)
        self._candidate = candidate
        self._source = backend
        self.specs: list[TaskSpec] = []
        """What was registered, in order."""
        self._hosts: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Host] = weakref.WeakKeyDictionary()

    def every(
        self, seconds: float, *, on: Where = "process", catch_up: bool = False, **options: Unpack[TaskOptions]
    ) -> Callable[[BodyT], BodyT]:
        """Run every so many seconds: in each process, or with `on="cluster"` each time in one process of the fleet.

        A tick of the fleet runs at most once, and is reported as missed if its process died; with `catch_up` it runs
        again then, so at least once.
        """
        schedule = Every(seconds)
        if on == "cluster" and seconds < 0.1:
            raise SettingsValidationError(f"a task of the fleet runs at most every 0.1 s, not every {seconds!r} s")
        return self._register(options, where=on, schedule=schedule, catch_up=catch_up)

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
        """Run another collection's tasks too, under our election and backend.

        What is registered there later does not count.
        """
        if not isinstance(cast("object", other), Tasks):
            raise SettingsValidationError(f"include takes a Tasks, and no {type(other).__name__}")
        for spec in other.specs:
            self._add(spec)

    def health(self) -> list[TaskHealth]:
        """How each task is doing on the running loop, or on the one that started this worker thread."""
        host = self._hosts.get(loop) if (loop := context.running_loop()) else None
        return [runner.health for runner in host.runners] if host else []

    async def open(self) -> None:
        """Start on the running loop. Counted. Raises `NotRunningError` if the store that it needs is not open."""
        loop = asyncio.get_running_loop()
        if host := self._hosts.get(loop):
            host.users += 1
            return
        election = self.election if self._is_candidate() else None
        host = self._hosts[loop] = Host(list(self.specs), crew_of(self._source).clock, self._source, election)
        try:
            await host.start()
        except BaseException:
            del self._hosts[loop]
            raise

    async def close(self) -> None:
        """Undo one `open`; the last one on the loop stops: leaders' bodies first, then resign, then the rest.

        Bodies are cancelled and have ended when this returns, unless they ignore it for ten seconds (leaders' bodies:
        until the lease has ended).
        """
        loop = asyncio.get_running_loop()
        host = self._hosts.get(loop)
        if host is None:
            return
        host.users -= 1
        if not host.users:
            del self._hosts[loop]
            await host.stop()

    def _register(self, options: TaskOptions, **fixed: Any) -> Callable[[BodyT], BodyT]:
        known = TaskOptions.__annotations__
        for option in options:
            if option not in known:
                names = ", ".join(f"{name}=" for name in known)
                raise SettingsValidationError(f"a task has no option {option}=: choose from {names}")

        def register(body: BodyT) -> BodyT:
            wanted(body)
            name = options.get("name") or str(getattr(body, "__name__", repr(body)))
            rest = {option: value for option, value in options.items() if option != "name"}
            self._add(TaskSpec(name, body, **fixed, **cast("dict[str, Any]", rest)))
            return body

        return register

    def _add(self, spec: TaskSpec) -> None:
        if any(not loop.is_closed() for loop in self._hosts):
            raise SettingsValidationError(f"the task {spec.name!r} comes too late: these tasks run already")
        if any(other.name == spec.name for other in self.specs):
            raise SettingsValidationError(f"two tasks are called {spec.name!r}: give one a name=")
        self.specs.append(spec)

    def _is_candidate(self) -> bool:
        if self._candidate is not None:
            return self._candidate
        return (read_env("GREL_CANDIDATE") or "true").strip().lower() not in {"0", "false", "no", "off"}
