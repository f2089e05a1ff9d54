"""Clients as they are: slow, gone in the middle, many at once; and apps that were set up the wrong way."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx
import pytest
from asgi_lifespan import LifespanManager
from fastapi import BackgroundTasks, Depends, FastAPI
from fastapi.responses import PlainTextResponse, StreamingResponse

from grelmicro_fastapi.app.grelmicro import Grelmicro
from grelmicro_fastapi.coordination.guards import WriteGuard
from grelmicro_fastapi.coordination.readwritelock import ReadWriteLock
from grelmicro_fastapi.providers.memory import MemoryProvider
from grelmicro_fastapi.testing.clock import ManualClock
from grelmicro_fastapi.web.dependencies import read_guard, write_guard
from grelmicro_fastapi.web.runtime import Runtime, runtime_of
from tests.web.serving import FlakyProvider, served

pytestmark = pytest.mark.anyio


class Site:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = FlakyProvider(clock=self.clock)
        self.app = FastAPI(lifespan=Grelmicro(uses=[self.memory]).lifespan)
        self.x = ReadWriteLock("x", backend=self.memory)

    async def held(self) -> bool:
        state = await self.x.state()
        return state.writing or state.readers > 0


@pytest.fixture
def site() -> Site:
    return Site()


class SlowClient:
    """Sends a request, takes the start of the answer, and not a byte more until it is told to go on."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.begun = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.left = asyncio.Event()
        self.sent: list[dict[str, Any]] = []
        self._asked = False

    async def receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.begun.set()
        await self.goes_on.wait()
        self.sent.append(message)

    def get(self) -> "asyncio.Task[None]":
        scope = {
            "type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b"", "http_version": "1.1",
        }  # fmt: skip
        return asyncio.create_task(self.app(scope, self.receive, self.send))


@pytest.mark.parametrize(("hold", "held"), [("handler", False), ("response", True)])
async def test_a_slow_client_holds_the_lock_only_until_the_response(site: Site, hold: Any, held: bool) -> None:
    @site.app.get("/", dependencies=[Depends(write_guard("x", hold=hold))])
    async def handle() -> PlainTextResponse:
        assert await site.held()
        return PlainTextResponse("a long page")

    async with served(site.app):
        client = SlowClient(site.app)
        request = client.get()
        await client.begun.wait()
        await site.clock.advance(300)  # five leases long
        assert await site.held() is held
        client.goes_on.set()
        await request
        assert client.sent[-1]["body"] == b"a long page"
        assert not await site.held()


async def test_a_client_that_leaves_in_the_middle_of_a_stream_ends_its_hold(site: Site) -> None:
    async def rows() -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.get_running_loop().create_future()

    @site.app.get("/", dependencies=[Depends(read_guard("x", hold="response"))])
    async def handle() -> StreamingResponse:
        return StreamingResponse(rows())

    async with served(site.app):
        client = SlowClient(site.app)
        client.goes_on.set()
        request = client.get()
        await client.begun.wait()
        await site.clock.settle()
        assert await site.held()
        client.left.set()
        await request
        assert not await site.held()


async def test_a_handler_goes_on_under_its_lock_when_the_client_has_left(site: Site) -> None:
    goes_on = asyncio.Event()
    seen: list[bool] = []

    @site.app.get("/")
    async def handle(after: BackgroundTasks, guard: Annotated[WriteGuard, Depends(write_guard("x"))]) -> None:
        await goes_on.wait()
        seen.append(guard.valid)

    async with served(site.app):
        client = SlowClient(site.app)
        client.goes_on.set()
        request = client.get()
        await site.clock.settle()
        client.left.set()
        await site.clock.settle()
        assert await site.held()
        goes_on.set()
        await request
        assert seen == [True]
        assert not await site.held()


def sixty_sync_routes(site: Site) -> list[str]:
    for number in range(60):

        @site.app.get(f"/{number}")
        def handle(guard: Annotated[WriteGuard, Depends(write_guard("x", wait=None))]) -> int:
            guard.check()
            return guard.fencing_token

    return [f"/{number}" for number in range(60)]


async def test_sixty_sync_routes_on_one_guard_do_not_wait_for_each_others_threads(site: Site) -> None:
    # More than the forty threads of the default limiter.
    paths = sixty_sync_routes(site)
    async with asyncio.timeout(30), served(site.app) as client:
        answers = await asyncio.gather(*[client.get(path) for path in paths for _ in range(2)])
    assert sorted(answer.json() for answer in answers) == list(range(1, 121))


async def test_two_hundred_clients_at_once_lose_no_update(site: Site) -> None:
    value = 0

    @site.app.get("/value")
    async def read(guard: Annotated[Any, Depends(read_guard("x", etag=True, wait=None))]) -> int:
        return value

    @site.app.put("/value")
    async def write(
        to: int, guard: Annotated[WriteGuard, Depends(write_guard("x", if_match="required", wait=0))]
    ) -> None:
        nonlocal value
        await asyncio.sleep(0)
        value = to

    async with served(site.app) as client:
        start = asyncio.Barrier(200)

        async def visit() -> int:
            read = await client.get("/value")
            await start.wait()
            to = read.json() + 1
            written = await client.put(f"/value?to={to}", headers={"if-match": read.headers["etag"]})
            return written.status_code

        statuses = await asyncio.gather(*[visit() for _ in range(200)])
        assert set(statuses) <= {200, 409, 412}
        assert statuses.count(200) == value == (await site.x.state()).generation == 1


async def test_a_client_without_the_state_of_the_lifespan_is_answered_all_the_same(site: Site) -> None:
    @site.app.get("/", dependencies=[Depends(write_guard("x"))])
    async def handle() -> None: ...

    async with LifespanManager(site.app):
        # `manager.app` would bring the state; to forget it is the most common mistake there is.
        transport = httpx.ASGITransport(app=site.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.get("/")).status_code == 200


async def test_installing_inside_the_lifespan_is_refused_because_it_would_be_ignored() -> None:
    micro = Grelmicro(uses=[MemoryProvider()])

    def lifespan(app: FastAPI) -> Any:
        micro.install(app)
        return micro.lifespan(app)

    with pytest.raises(RuntimeError, match="outside its lifespan"):
        async with served(FastAPI(lifespan=lifespan)):
            pass


async def test_a_handler_can_ask_for_the_app_that_is_open(site: Site) -> None:
    @site.app.get("/")
    async def handle(runtime: Annotated[Runtime, Depends(runtime_of)]) -> list[bool]:
        return [runtime.coordination is not None, runtime.draining, not runtime.elections]

    async with served(site.app) as client:
        assert (await client.get("/")).json() == [True, False, True]
