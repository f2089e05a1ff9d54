from enum import Enum
from typing import Annotated, Any
from uuid import UUID

import pytest
from fastapi import APIRouter, Cookie, Depends, FastAPI, Header, Path, Query, WebSocket
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from grelmicro_fastapi.app.grelmicro import Grelmicro
from grelmicro_fastapi.coordination.guards import WriteGuard
from grelmicro_fastapi.coordination.readwritelock import ReadWriteLock
from grelmicro_fastapi.providers.memory import MemoryProvider
from grelmicro_fastapi.web.dependencies import write_guard
from grelmicro_fastapi.web.template import Template
from tests.web.serving import problem_of, served

pytestmark = pytest.mark.anyio

memory = MemoryProvider()
Order = Annotated[WriteGuard, Depends(write_guard("order:{order_id}"))]


class Colour(Enum):
    RED = "red"


def app_with(endpoint: Any, path: str, **options: Any) -> FastAPI:
    app = FastAPI(lifespan=Grelmicro(uses=[memory]).lifespan)
    app.get(path, **options)(endpoint)
    return app


async def name_for(endpoint: Any, path: str, url: str, **request: Any) -> str:
    async with served(app_with(endpoint, path)) as client:
        answer = await client.get(url, **request)
        assert answer.status_code == 200, answer.text
        return str(answer.json())


async def test_one_order_is_one_lock_however_its_number_is_written() -> None:
    async def show(order_id: int, guard: Order) -> str:
        return guard.name

    assert await name_for(show, "/orders/{order_id}", "/orders/7") == "order:7"
    assert await name_for(show, "/orders/{order_id}", "/orders/007") == "order:7"


async def test_one_uuid_is_one_lock_in_either_case() -> None:
    async def show(order_id: UUID, guard: Order) -> str:
        return guard.name

    one = "0F8FAD5B-D9CB-469F-A165-70867728950E"
    assert await name_for(show, "/orders/{order_id}", f"/orders/{one}") == f"order:{one.lower()}"


async def test_an_enum_is_named_by_its_value() -> None:
    async def show(colour: Colour, guard: Annotated[WriteGuard, Depends(write_guard("c:{colour}"))]) -> str:
        return guard.name

    assert await name_for(show, "/{colour}", "/red") == "c:red"


async def test_query_header_and_cookie_parameters_may_name_a_lock() -> None:
    async def show(
        page: int,
        x_tenant: Annotated[str, Header()],
        theme: Annotated[str, Cookie(alias="look")],
        guard: Annotated[WriteGuard, Depends(write_guard("{x_tenant}/{page}/{theme}"))],
        size: int = Query(10),
    ) -> str:
        return guard.name

    name = await name_for(show, "/", "/?page=03", headers={"x-tenant": "acme", "cookie": "look=dark"})
    assert name == "acme/3/dark"


async def test_a_default_names_a_lock_too() -> None:
    async def show(
        guard: Annotated[WriteGuard, Depends(write_guard("{size}:{page}"))], size: int = Query(10), page: int = 1
    ) -> str:
        return guard.name

    assert await name_for(show, "/", "/") == "10:1"


async def test_a_parameter_of_a_dependency_may_name_a_lock() -> None:
    def order(order_id: int) -> int:
        return order_id

    async def show(guard: Order, order: Annotated[int, Depends(order)]) -> str:
        return guard.name

    assert await name_for(show, "/orders/{order_id}", "/orders/08") == "order:8"


async def test_the_prefix_of_an_included_router_may_name_a_lock() -> None:
    inner, outer = APIRouter(prefix="/{order_id}"), APIRouter(prefix="/orders")

    @inner.get("")
    async def show(order_id: int, guard: Order) -> str:
        return guard.name

    outer.include_router(inner)
    app = FastAPI(lifespan=Grelmicro(uses=[memory]).lifespan)
    app.include_router(outer)
    async with served(app) as client:
        assert (await client.get("/orders/09")).json() == "order:9"


async def test_a_doubled_brace_is_a_brace() -> None:
    async def show(guard: Annotated[WriteGuard, Depends(write_guard("{{x}}"))]) -> str:
        return guard.name

    assert await name_for(show, "/", "/") == "{x}"


async def test_a_value_that_the_endpoint_refuses_is_422_and_takes_no_lock() -> None:
    async def annotated(order_id: Annotated[int, Path(ge=1)], guard: Order) -> str:
        return guard.name

    async def by_default(guard: Order, order_id: int = Path(ge=1)) -> str:
        return guard.name

    for endpoint in (annotated, by_default):
        async with served(app_with(endpoint, "/{order_id}")) as client:
            for value in ("0", "zz"):
                answer = await client.get(f"/{value}")
                assert answer.status_code == 422
                assert answer.json()["detail"][0]["loc"] == ["path", "order_id"]
            assert [key async for key in memory.backend.crew().store.keys("rwlock:order:zz")] == []
            assert (await ReadWriteLock("order:0", backend=memory).state()).generation == 0


async def test_a_name_with_control_characters_is_422() -> None:
    async def show(order_id: str, guard: Order) -> str:
        return guard.name

    async with served(app_with(show, "/{order_id}")) as client:
        answer = await client.get("/a%00b")
        assert answer.status_code == 422
        assert answer.json()["detail"][0]["loc"] == ["path", "order_id"]


async def test_an_optional_parameter_that_is_absent_names_no_lock() -> None:
    async def show(guard: Order, order_id: int | None = None) -> str:
        return guard.name

    async with served(app_with(show, "/")) as client:
        answer = await client.get("/")
        assert answer.status_code == 422
        assert answer.json()["detail"][0]["type"] == "missing"


async def test_a_placeholder_that_the_route_lacks_is_misuse() -> None:
    async def show(guard: Order) -> str:
        return guard.name

    async with served(app_with(show, "/")) as client:
        assert problem_of(await client.get("/")) == "guard-misuse"
    # The text of the path would be the wrong identity, and nobody says what it is.
    async with served(app_with(show, "/{order_id}")) as client:
        assert problem_of(await client.get("/007")) == "guard-misuse"


async def test_a_path_convertor_says_what_the_value_is() -> None:
    async def show(guard: Order) -> str:
        return guard.name

    assert await name_for(show, "/{order_id:int}", "/007") == "order:7"


def test_websocket_routes_have_placeholders_too() -> None:
    app = FastAPI(lifespan=Grelmicro(uses=[MemoryProvider()]).lifespan)

    @app.websocket("/orders/{order_id}")
    async def talk(socket: WebSocket, order_id: int, guard: Order) -> None:
        await socket.accept()
        await socket.send_text(guard.name)
        await socket.close()

    with TestClient(app) as client:
        with client.websocket_connect("/orders/007") as socket:
            assert socket.receive_text() == "order:7"
        with pytest.raises(WebSocketDisconnect), client.websocket_connect("/orders/zz"):
            pass


@pytest.mark.parametrize("text", ["{", "}", "{}", "{0}", "{x!r}", "{x:>3}", "{x.y}", "{x[0]}", "", "a\nb", "x" * 513])
def test_a_malformed_name_is_refused_where_it_is_written(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Template(text)
