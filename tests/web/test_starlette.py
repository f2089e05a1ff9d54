"""Guards without `Depends`: in plain Starlette, and in handlers of FastAPI."""

from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from grelmicro_fastapi.app.grelmicro import Grelmicro
from grelmicro_fastapi.coordination.guards import ReadGuard, WriteGuard
from grelmicro_fastapi.coordination.readwritelock import ReadWriteLock
from grelmicro_fastapi.testing.clock import ManualClock
from grelmicro_fastapi.web.dependencies import read_guard, write_guard
from tests.web.serving import FlakyProvider, held_elsewhere, problem_of, served

pytestmark = pytest.mark.anyio

order = write_guard("order:{order_id}", wait=0)


class Site:
    def __init__(self, install: bool) -> None:
        self.clock = ManualClock()
        self.memory = FlakyProvider(clock=self.clock)
        micro = Grelmicro(uses=[self.memory])
        routes = [
            Route("/orders/{order_id:int}", self.pay),
            Mount("/shop", routes=[Route("/orders/{order_id}", self.pay)]),
            Route("/missing", self.pay),
            Route("/catalog", self.catalog),
            WebSocketRoute("/talk/{order_id:int}", self.talk),
        ]
        self.app = Starlette(routes=routes, lifespan=micro.lifespan)
        if install:
            micro.install(self.app)
        self.seven = ReadWriteLock("order:7", backend=self.memory)

    async def pay(self, request: Request) -> Response:
        async with order.held(request) as guard, order.held(request) as same:
            assert guard is same
            if "lose" in request.query_params:
                self.clock.jump(61)
            if "fail" in request.query_params:
                raise RuntimeError("failed")
            return JSONResponse([guard.name, guard.fencing_token])

    async def catalog(self, request: Request) -> Response:
        async with read_guard("catalog", etag=True).held(request):
            return JSONResponse("rows")

    async def talk(self, socket: WebSocket) -> None:
        async with order.held(socket) as guard:
            await socket.accept()
            await socket.send_text(guard.name)
            await socket.receive_text()


@pytest.fixture(params=["installed", "nothing installed"])
def site(request: pytest.FixtureRequest) -> Site:
    return Site(request.param == "installed")


async def test_a_guard_is_held_in_its_block(site: Site) -> None:
    async with served(site.app) as client:
        assert (await client.get("/orders/007")).json() == ["order:7", 1]
        assert (await client.get("/shop/orders/7")).json() == ["order:7", 2]
        assert not (await site.seven.state()).writing


async def test_the_answers_are_the_same(site: Site) -> None:
    async with served(site.app, raises=False) as client:
        async with held_elsewhere(site.seven.write):
            answer = await client.get("/orders/7")
            assert answer.status_code == 409
            assert problem_of(answer) == "lock-contended"
            assert answer.json()["lock"] == "order:{order_id}"
            assert "retry-after" in answer.headers
        assert problem_of(await client.get("/orders/7?lose=1")) == "guard-lost"
        assert problem_of(await client.get("/missing")) == "guard-misuse"
        await client.get("/orders/7")
        assert not (await site.seven.state()).poisoned


async def test_a_body_that_raised_keeps_poison_as_it_was(site: Site) -> None:
    async with served(site.app, raises=False) as client:
        await client.get("/orders/7?lose=1")
        assert (await site.seven.state()).poisoned
        assert (await client.get("/orders/7?fail=1")).status_code == 500
        assert (await site.seven.state()).poisoned
        assert (await client.get("/orders/7")).status_code == 200
        assert not (await site.seven.state()).poisoned


async def test_what_the_client_has_is_not_sent_again(site: Site) -> None:
    async with served(site.app) as client:
        answer = await client.get("/catalog", headers={"if-none-match": '"g0"'})
        assert (answer.status_code, answer.content) == (304, b"")


async def test_the_tag_is_sent_once_installed() -> None:
    async with served(Site(install=True).app) as client:
        assert (await client.get("/catalog")).headers["etag"] == '"g0"'


def test_websockets_are_held_and_refused(site: Site) -> None:
    with TestClient(site.app) as client, client.websocket_connect("/talk/7") as socket:
        assert socket.receive_text() == "order:7"
        with pytest.raises(WebSocketDisconnect) as refused, client.websocket_connect("/talk/7"):
            pass
        answer: Any = refused.value
        assert answer.status_code == 409
        socket.send_text("bye")


async def test_a_handler_of_fastapi_joins_what_its_request_holds() -> None:
    memory = FlakyProvider()
    app = FastAPI(lifespan=Grelmicro(uses=[memory]).lifespan)

    @app.get("/join")
    async def join(request: Request, guard: Annotated[WriteGuard, Depends(write_guard("x"))]) -> bool:
        async with write_guard("x").held(request) as same:
            assert same is guard
        return guard.valid

    @app.get("/upgrade")
    async def upgrade(request: Request, guard: Annotated[ReadGuard, Depends(read_guard("x"))]) -> None:
        async with write_guard("x", wait=None).held(request):
            raise AssertionError("unreachable")

    @app.get("/again")
    async def again(request: Request, guard: Annotated[WriteGuard, Depends(write_guard("x"))]) -> int:
        await guard.release()
        async with write_guard("x").held(request) as another:
            return another.fencing_token - guard_token

    async with served(app) as client:
        assert (await client.get("/join")).json() is True
        assert problem_of(await client.get("/upgrade")) == "guard-misuse"
        guard_token = (await ReadWriteLock("x", backend=memory).state()).generation + 1
        assert (await client.get("/again")).json() == 1


async def test_a_guard_with_a_key_wants_the_name() -> None:
    memory = FlakyProvider()
    app = FastAPI(lifespan=Grelmicro(uses=[memory]).lifespan)
    cart = write_guard("cart", key=lambda: "cart:me")

    @app.get("/")
    async def handle(request: Request) -> str:
        with pytest.raises(TypeError, match="name="):
            cart.held(request)
        async with cart.held(request, name="cart:you") as guard:
            return guard.name

    async with served(app) as client:
        assert (await client.get("/")).json() == "cart:you"
