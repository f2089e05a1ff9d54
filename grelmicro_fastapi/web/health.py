"""Health for whoever runs the service: `/livez`, `/readyz`, `/healthz`.

Alive is whoever answers: a store that is down is no reason to restart the fleet. Ready is whoever can take locks and
was not told to stop, leader or not.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, Protocol, cast
from weakref import WeakKeyDictionary

from fastapi import APIRouter, params
from fastapi.responses import JSONResponse
from starlette.requests import Request

from grelmicro_fastapi.coordination.backend import Backend
from grelmicro_fastapi.coordination.crew import Crew
from grelmicro_fastapi.coordination.store import Scope
from grelmicro_fastapi.errors import NotRunningError
from grelmicro_fastapi.tasks.health import TaskHealth
from grelmicro_fastapi.tasks.tasks import Tasks
from grelmicro_fastapi.web.runtime import Runtime, runtime_of

_FRESH: Final = 1.0
"""Seconds for which what a store said is believed, so that no number of probes is a load on it."""
_PATIENCE: Final = 1.0
"""Seconds for a store to give a sign of life. Kubernetes waits as long by default."""

_KEY: Final = "check:"


class Running(Runtime, Protocol):
    """What is looked at of the app that is open."""

    @property
    def crews(self) -> Mapping[Backend, Crew]:
        """Who works for each of its stores on this loop."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What whoever runs it should know."""
        ...

    @property
    def tasks(self) -> Sequence[Tasks]:
        """Its background tasks."""
        ...


class _Pulse:
    """Whether one store gives signs of life."""

    def __init__(self, crew: Crew) -> None:
        self._courier = crew.courier
        self._clock = crew.clock
        self._asking = asyncio.Lock()
        self._stale = self._clock.now()
        self.alive = False
        self.latency: float | None = None

    async def feel(self) -> bool:
        """Ask it, unless it was asked a moment ago. However many probes come, one asks."""
        async with self._asking:
            if self._clock.now() >= self._stale:
                self.alive = await self._ask()
                self._stale = self._clock.now() + _FRESH
            return self.alive

    async def _ask(self) -> bool:
        began = self._clock.now()
        asking = asyncio.ensure_future(self._courier.peek(_KEY))
        timer = self._clock.call_later(_PATIENCE, asking.cancel)
        try:
            await asyncio.wait([asking])
        finally:
            timer.cancel()
            asking.cancel()
        if asking.cancelled() or asking.exception() is not None:
            self.latency = None
            return False
        self.latency = self._clock.now() - began
        return True


class _Looker:
    """Looks at the app that answers for a request."""

    def __init__(self) -> None:
        self._pulses: WeakKeyDictionary[Crew, _Pulse] = WeakKeyDictionary()

    async def livez(self) -> JSONResponse:
        return _answer("alive")

    async def readyz(self, request: Request) -> JSONResponse:
        running = _running(request)
        return _answer(await self._status(running), **_notes(running))

    async def healthz(self, request: Request) -> JSONResponse:
        running = _running(request)
        status = await self._status(running)
        return _answer(status, **_notes(running), **self._details(running) if running else {})

    async def _status(self, running: Running | None) -> str:
        if running is None:
            return "starting"
        if running.draining:
            return "draining"
        alive = await asyncio.gather(*[self._pulse(crew).feel() for crew in running.crews.values()])
        return "ready" if all(alive) else "unreachable"

    def _pulse(self, crew: Crew) -> _Pulse:
        if crew not in self._pulses:
            self._pulses[crew] = _Pulse(crew)
        return self._pulses[crew]

    def _details(self, running: Running) -> dict[str, Any]:
        return {
            "stores": [self._store(backend, crew) for backend, crew in running.crews.items()],
            "elections": [
                {"name": name, "leading": election.is_leader()} for name, election in running.elections.items()
            ],
            "tasks": [_task(health) for tasks in running.tasks for health in tasks.health()],
        }

    def _store(self, backend: Backend, crew: Crew) -> dict[str, Any]:
        pulse = self._pulse(crew)
        latency = None if pulse.latency is None else round(1000 * pulse.latency, 3)
        reach = Scope(crew.store.scope).name.lower()
        return {"name": backend.name, "reach": reach, "alive": pulse.alive, "latency_ms": latency}


def health_router(dependencies: Sequence[params.Depends] = ()) -> APIRouter:
    """`/livez` and `/readyz` for probes, `/healthz` with details for people, all outside the OpenAPI schema.

    `dependencies` guard the details only, for probes have no passwords.
    """
    router, looker = APIRouter(include_in_schema=False), _Looker()
    for path, endpoint, needed in (
        ("/livez", looker.livez, ()),
        ("/readyz", looker.readyz, ()),
        ("/healthz", looker.healthz, dependencies),
    ):
        router.add_api_route(path, endpoint, methods=["GET", "HEAD"], dependencies=list(needed), response_model=None)
    return router


def _notes(running: Running | None) -> dict[str, Any]:
    return {"notes": [*running.notes]} if running and running.notes else {}


def _running(request: Request) -> Running | None:
    try:
        return cast("Running", runtime_of(request))
    except NotRunningError:
        return None


def _task(health: TaskHealth) -> dict[str, Any]:
    shown = asdict(health)
    # The text of an error may hold anything, a password too. The log has it.
    shown["last_error"] = health.last_error and health.last_error.partition(":")[0]
    return {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in shown.items()}


def _answer(status: str, **details: Any) -> JSONResponse:
    code = 200 if status in ("alive", "ready") else 503
    return JSONResponse({"status": status, **details}, code, {"cache-control": "no-store"})
