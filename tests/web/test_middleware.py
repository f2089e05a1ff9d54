"""Guards behind `BaseHTTPMiddleware`, which runs the app in a task of its own and keeps what the client sends."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.requests import Request

from grelmicro_fastapi.app.grelmicro import Grelmicro
from grelmicro_fastapi.coordination.guards import ReadGuard, WriteGuard
from grelmicro_fastapi.coordination.readwritelock import ReadWriteLock
from grelmicro_fastapi.testing.clock import ManualClock
from grelmicro_fastapi.web.dependencies import read_guard, write_guard
from tests.web.serving import FlakyProvider, held_elsewhere, problem_of, served

pytestmark = pytest.mark.anyio

Next = Callable[[Request], Awaitable[Response]]


class Site:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = FlakyProvider(clock=self.clock)
        self.app = FastAPI()
        Grelmicro(uses=[self.memory]).install(self.app)
        self.x = ReadWriteLock("x", backend=self.memory)

        @self.app.middleware("http")
        async def passes_on(request: Request, call_next: Next) -> Response:
            response = await call_next(request)
            response.headers["x-passed"] = "yes"
            return response


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    # So that every request that waits is looked after.
    monkeypatch.setattr("grelmicro_fastapi.web.disconnect.PATIENCE", 0.0)
    return Site()


async def waits(site: Site) -> None:
    await site.clock.settle()
    assert (await site.x.state()).waiting_writers == 1


class Rows(BaseModel):
    rows: list[str]


@pytest.mark.parametrize("body", [None, {"rows": ["pear"]}])
async def test_a_request_that_waits_gets_its_lock_and_its_body(site: Site, body: Any) -> None:
    @site.app.post("/")
    async def handle(guard: Annotated[WriteGuard, Depends(write_guard("x"))], rows: Rows | None = None) -> list[Any]:
        return [guard.fencing_token, rows.rows if rows else None]

    async with asyncio.timeout(10), served(site.app) as client:
        async with held_elsewhere(site.x.write):
            request = asyncio.create_task(client.post("/", json=body))
            await waits(site)
        answer = await request
        assert answer.json() == [2, body and body["rows"]]
        assert answer.headers["x-passed"] == "yes"
        assert not (await site.x.state()).writing


@pytest.mark.parametrize("body", [b"", b"raw"])
async def test_a_handler_that_reads_the_body_itself_gets_it_after_a_wait(site: Site, body: bytes) -> None:
    @site.app.post("/", dependencies=[Depends(write_guard("x"))])
    async def handle(request: Request) -> str:
        return (await request.body()).decode()

    async with asyncio.timeout(10), served(site.app) as client:
        async with held_elsewhere(site.x.write):
            request = asyncio.create_task(client.post("/", content=body))
            await waits(site)
        assert (await request).json() == body.decode()


async def test_a_client_that_left_unseen_is_bounded_by_the_wait(site: Site) -> None:
    @site.app.get("/", dependencies=[Depends(write_guard("x", wait=3))])
    async def handle() -> None:
        raise AssertionError("unreachable")

    async with served(site.app) as client, held_elsewhere(site.x.write):
        request = asyncio.create_task(client.get("/"))
        await waits(site)
        await site.clock.advance(3.1)
        assert problem_of(await request) == "lock-contended"
        assert (await site.x.state()).waiting_writers == 0


async def test_the_lock_ends_where_it_ends_without_middleware(site: Site) -> None:
    seen: list[str] = []

    async def note(what: str) -> None:
        state = await site.x.state()
        seen.append(f"{what}: {'held' if state.writing or state.readers else 'free'}")

    async def body() -> AsyncIterator[bytes]:
        await note("body")
        yield b"."

    @site.app.get("/handler")
    async def short(after: BackgroundTasks, guard: Annotated[ReadGuard, Depends(read_guard("x"))]) -> StreamingResponse:
        after.add_task(note, "background")
        return StreamingResponse(body())

    @site.app.get("/response", dependencies=[Depends(write_guard("x", hold="response"))])
    async def long(after: BackgroundTasks) -> StreamingResponse:
        after.add_task(note, "background")
        return StreamingResponse(body())

    async with served(site.app) as client:
        await client.get("/handler")
        await client.get("/response")
        await note("afterwards")
    assert seen == ["body: free", "background: free", "body: held", "background: held", "afterwards: free"]


async def test_a_handler_that_raises_behind_it_releases_and_keeps_poison(site: Site) -> None:
    @site.app.put("/", dependencies=[Depends(write_guard("x"))])
    async def handle() -> None:
        raise RuntimeError("broken")

    async def spoil() -> None:
        await (await site.x.write.acquire()).release(poison=True)

    async with served(site.app, raises=False) as client:
        await asyncio.create_task(spoil())
        assert (await client.put("/")).status_code == 500
        state = await site.x.state()
        assert (state.writing, state.poisoned) == (False, True)


async def test_a_lost_lease_cancels_the_handler_and_not_the_middleware(site: Site) -> None:
    guard = write_guard("x", lease_duration=10, keep_alive=False, on_lost="cancel")

    @site.app.get("/", dependencies=[Depends(guard)])
    async def handle() -> None:
        site.clock.jump(9)
        moving = asyncio.create_task(site.clock.advance(2))
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.wait([moving])

    async with served(site.app) as client:
        answer = await client.get("/")
        assert problem_of(answer) == "guard-lost"
        assert answer.headers["x-passed"] == "yes"


async def test_a_middleware_that_holds_the_lock_shares_it_with_the_handler(site: Site) -> None:
    guard = write_guard("x")

    @site.app.middleware("http")
    async def holds(request: Request, call_next: Next) -> Response:
        async with guard.held(request) as held:
            response = await call_next(request)
            response.headers["x-token"] = str(held.fencing_token)
            return response

    @site.app.get("/")
    async def handle(held: Annotated[WriteGuard, Depends(guard)]) -> int:
        return held.fencing_token

    async with asyncio.timeout(10), served(site.app) as client:
        answer = await client.get("/")
        assert answer.headers["x-token"] == str(answer.json()) == "1"
        assert not (await site.x.state()).writing
