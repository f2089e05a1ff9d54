"""Requests that are cancelled, by a lost lease, by the server, by a client that leaves, or by several of them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any

import anyio
import pytest
from fastapi import Depends, FastAPI
from starlette.requests import Request

from grelmicro_fastapi.app.grelmicro import Grelmicro
from grelmicro_fastapi.coordination.guards import WriteGuard
from grelmicro_fastapi.coordination.readwritelock import ReadWriteLock
from grelmicro_fastapi.testing.clock import ManualClock
from grelmicro_fastapi.web.dependencies import read_guard, write_guard
from tests.web.serving import FlakyProvider, held_elsewhere, problem_of, served

pytestmark = pytest.mark.anyio

TURNS = 60
"""More turns of the loop than a request takes."""


class Site:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = FlakyProvider(clock=self.clock)
        self.app = FastAPI(lifespan=Grelmicro(uses=[self.memory], drain=0).lifespan)
        self.locks = [ReadWriteLock(name, backend=self.memory) for name in ("x", "y", "z")]

    async def held(self) -> list[str]:
        states = [(lock.name, await lock.state()) for lock in self.locks]
        return [name for name, state in states if state.writing or state.readers or state.waiting_writers]

    async def poisoned(self) -> list[str]:
        return [lock.name for lock in self.locks if (await lock.state()).poisoned]


@pytest.fixture
def site() -> Site:
    return Site()


def losing(site: Site, *names: str, hold: Any = "handler") -> Any:
    return Depends(write_guard(*names, lease_duration=10, keep_alive=False, on_lost="cancel", hold=hold))


async def never() -> None:
    await asyncio.get_running_loop().create_future()


async def gone(request: "asyncio.Task[Any]") -> bool:
    """Did the cancellation come through?"""
    with contextlib.suppress(asyncio.CancelledError):
        await request
    return request.cancelled()


@pytest.mark.parametrize("first", ["the loss", "the server"])
async def test_a_cancellation_of_the_server_is_not_swallowed_by_that_of_a_lost_lease(site: Site, first: str) -> None:
    requests: list[asyncio.Task[Any]] = []

    @site.app.get("/", dependencies=[losing(site, "x")])
    async def handle() -> None:
        if first == "the server":
            requests[0].cancel()
        site.clock.jump(9)
        moving = asyncio.create_task(site.clock.advance(2))
        try:
            await never()
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                if first == "the loss":
                    requests[0].cancel()
                await moving
            await asyncio.wait([moving])

    async with served(site.app) as client:
        requests.append(asyncio.create_task(client.get("/")))
        assert await gone(requests[0])
        await site.clock.settle()
        assert await site.held() == []


async def test_a_cancellation_of_the_server_after_an_unnoticed_loss_is_not_an_answer(site: Site) -> None:
    inside = asyncio.Event()

    @site.app.get("/", dependencies=[losing(site, "x")])
    async def handle() -> None:
        inside.set()
        await never()

    async with served(site.app) as client:
        request = asyncio.create_task(client.get("/"))
        await inside.wait()
        site.clock.jump(11)  # nobody has told the handler yet
        request.cancel()
        assert await gone(request)


@pytest.mark.parametrize("hold", ["handler", "response"])
async def test_a_handler_that_loses_several_leases_at_once_is_answered_once(site: Site, hold: Any) -> None:
    @site.app.get("/", dependencies=[losing(site, "x", "y", hold=hold), losing(site, "z", hold=hold)])
    async def handle() -> None:
        site.clock.jump(9)
        moving = asyncio.create_task(site.clock.advance(2))
        try:
            await never()
        finally:
            await asyncio.wait([moving])

    async with served(site.app) as client:
        request = asyncio.create_task(client.get("/"))
        assert problem_of(await request) == "guard-lost"
        assert await site.held() == []


async def test_several_locks_are_all_released_under_one_cancellation(site: Site) -> None:
    inside = asyncio.Event()

    @site.app.get("/", dependencies=[Depends(write_guard("x", "y")), Depends(read_guard("z", hold="response"))])
    async def handle() -> None:
        inside.set()
        await never()

    async with served(site.app) as client:
        request = asyncio.create_task(client.get("/"))
        await inside.wait()
        site.memory.gate.clear()
        request.cancel()
        await site.clock.settle()
        request.cancel()  # again, while the releases are on their way
        await site.clock.settle()
        site.memory.gate.set()
        assert await gone(request)
        await site.clock.settle()
        assert await site.held() == []


@pytest.mark.parametrize("looks", [True, False])
async def test_a_request_that_is_cancelled_at_any_moment_leaves_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch, looks: bool
) -> None:
    monkeypatch.setattr("grelmicro_fastapi.web.disconnect.PATIENCE", 0.0 if looks else 60.0)
    entered = 0

    @site.app.get("/", dependencies=[Depends(write_guard("x", "y", wait=None))])
    async def handle() -> None:
        nonlocal entered
        entered += 1

    async with served(site.app) as client:
        ends = set()
        for turns in range(TURNS):
            async with held_elsewhere(site.locks[1].write):
                request = asyncio.create_task(client.get("/"))
                await site.clock.settle()
                assert "x" in await site.held()
            # From here on the request has its lock, if it is let.
            for _ in range(turns):
                await asyncio.sleep(0)
            request.cancel()
            ends.add(await gone(request))
            await site.clock.settle()
            assert await site.held() == [], f"cancelled after {turns} turns"
        assert ends == {True, False}
        assert entered


async def test_a_client_that_leaves_just_as_the_server_cancels_is_cancelled(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grelmicro_fastapi.web.disconnect.PATIENCE", 0.0)
    left = asyncio.Event()
    requests: list[asyncio.Task[Any]] = []

    @site.app.get("/", dependencies=[Depends(write_guard("x", wait=None))])
    async def handle() -> None: ...

    async def receive() -> dict[str, Any]:
        if not left.is_set():
            await left.wait()
            requests[0].cancel()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None: ...

    scope: dict[str, Any] = {
        "type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b"", "http_version": "1.1",
    }  # fmt: skip
    async with served(site.app), held_elsewhere(site.locks[0].write):
        requests.append(asyncio.create_task(site.app(scope, receive, send)))
        await site.clock.settle()
        left.set()
        assert await gone(requests[0])


async def test_a_release_that_hangs_holds_the_answer_up_for_five_seconds_and_no_longer(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    @site.app.get("/", dependencies=[Depends(write_guard("x"))])
    async def handle() -> None:
        site.memory.gate.clear()

    async with served(site.app) as client:
        request = asyncio.create_task(client.get("/"))
        await site.clock.advance(4.9)
        assert not request.done()
        await site.clock.advance(0.2)
        assert (await request).status_code == 200
        assert "is not confirmed" in caplog.text
        site.memory.gate.set()
        await site.clock.advance(10)
        assert await site.held() == []


@pytest.mark.parametrize("first", ["guard", "scope"])
@pytest.mark.parametrize("scope", ["function", "request"])
async def test_a_dependency_may_keep_a_cancel_scope_open_beside_a_guard(site: Site, first: str, scope: Any) -> None:
    async def timed() -> AsyncIterator[None]:
        with anyio.fail_after(60):
            yield

    async def grouped() -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.lowlevel.checkpoint)
            yield

    guards = [Depends(write_guard("x")), Depends(write_guard("y", hold="response")), losing(site, "z")]
    scopes = [Depends(timed, scope=scope), Depends(grouped, scope=scope)]

    @site.app.get("/", dependencies=guards + scopes if first == "guard" else scopes + guards)
    async def handle() -> str:
        return "done"

    async with served(site.app) as client:
        assert (await client.get("/")).json() == "done"
        assert await site.held() == []


async def test_a_handler_of_several_tasks_is_ended_by_a_lost_lease_as_one(site: Site) -> None:
    @site.app.get("/")
    async def handle(guard: Annotated[WriteGuard, losing(site, "x")]) -> None:
        site.clock.jump(9)
        moving = asyncio.create_task(site.clock.advance(2))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(never())
                group.create_task(never())
        finally:
            await asyncio.wait([moving])

    async with served(site.app) as client:
        assert problem_of(await asyncio.create_task(client.get("/"))) == "guard-lost"
        assert await site.held() == []
        assert await site.poisoned() == ["x"]


async def test_a_cancelled_request_keeps_the_poison_that_it_found(site: Site) -> None:
    inside = asyncio.Event()

    @site.app.get("/", dependencies=[Depends(write_guard("x"))])
    async def handle(request: Request) -> None:
        inside.set()
        await never()

    async def spoil() -> None:
        await (await site.locks[0].write.acquire()).release(poison=True)

    async with served(site.app) as client:
        await asyncio.create_task(spoil())
        request = asyncio.create_task(client.get("/"))
        await inside.wait()
        request.cancel()
        assert await gone(request)
        assert await site.poisoned() == ["x"]
