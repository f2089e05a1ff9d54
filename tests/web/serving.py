"""An app that is open and answers, and somebody else who holds its locks."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
from asgi_lifespan import LifespanManager
from starlette.applications import Starlette

from grelmicro_fastapi.coordination.state import Release, Vacate
from grelmicro_fastapi.coordination.store import Answer, Ask
from grelmicro_fastapi.coordination.view import View
from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers.memory import MemoryProvider, MemoryStore


@asynccontextmanager
async def served(app: Starlette, *, raises: bool = True) -> AsyncIterator[httpx.AsyncClient]:
    async with LifespanManager(app) as manager:
        transport = httpx.ASGITransport(app=manager.app, raise_app_exceptions=raises)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield client


@asynccontextmanager
async def held_elsewhere(view: View[Any]) -> AsyncIterator[None]:
    """Another task holds it: one that the requests of this test do not descend from."""
    held, done = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with view:
            held.set()
            await done.wait()

    task = asyncio.create_task(hold())
    await held.wait()
    try:
        yield
    finally:
        done.set()
        await task


async def elsewhere(work: Any) -> Any:
    """Await it in a task of its own, as a request of another connection would."""
    return await asyncio.create_task(work)


def problem_of(answer: httpx.Response) -> str:
    """The word that a program goes by."""
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    document = answer.json()
    assert document["status"] == answer.status_code
    return str(document["type"].rpartition(":")[2])


class FlakyProvider(MemoryProvider):
    """Memory at the end of a line, which brings no answer to the commands whose class is in `deaf_to`.

    While `gate` is closed, releases are under way.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.deaf_to: set[type] = set()
        self.gate = asyncio.Event()
        self.gate.set()

    def _store(self) -> Any:
        return _Line(super()._store(), self.deaf_to, self.gate)


class _Line:
    def __init__(self, store: MemoryStore, deaf_to: set[type], gate: asyncio.Event) -> None:
        self._store = store
        self._deaf_to = deaf_to
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        if name == "at_once":  # not over a line
            raise AttributeError(name)
        return getattr(self._store, name)

    async def apply(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        if any(isinstance(ask.command, Release) for ask in asks):
            await self._gate.wait()
        answers: list[Answer] = []
        for ask in asks:
            if type(ask.command) in self._deaf_to:
                answers.append(BackendError("the line is down"))
            else:
                answers += await self._store.apply([ask])
        return answers

    async def vacate(self) -> int:
        if Vacate in self._deaf_to:
            raise BackendError("the line is down")
        return await self._store.vacate()
