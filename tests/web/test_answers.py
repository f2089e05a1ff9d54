"""What a client is told, with and without `install`."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, HTTPException, WebSocket
from fastapi.responses import JSONResponse
from starlette.requests import Request
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from grelmicro_fastapi.app.grelmicro import Grelmicro
from grelmicro_fastapi.coordination.guards import LockHandle, ReadGuard, WriteGuard
from grelmicro_fastapi.coordination.lock import Lock
from grelmicro_fastapi.coordination.readwritelock import ReadWriteLock
from grelmicro_fastapi.coordination.state import Acquire
from grelmicro_fastapi.errors import FencedError, LockTimeoutError, QueueFullError, WouldBlockError
from grelmicro_fastapi.testing.clock import ManualClock
from grelmicro_fastapi.web.dependencies import lock_guard, read_guard, write_guard
from tests.web.serving import FlakyProvider, elsewhere, held_elsewhere, problem_of, served

pytestmark = pytest.mark.anyio


class Site:
    def __init__(self, install: bool) -> None:
        self.clock = ManualClock()
        self.memory = FlakyProvider(clock=self.clock)
        self.micro = Grelmicro(uses=[self.memory])
        self.app = FastAPI(lifespan=self.micro.lifespan)
        if install:
            self.micro.install(self.app)
        self.x = ReadWriteLock("x", backend=self.memory)


@pytest.fixture(params=["installed", "nothing installed"])
def site(request: pytest.FixtureRequest) -> Site:
    return Site(request.param == "installed")


async def test_an_error_of_a_route_without_a_guard_is_answered_where_the_app_is_installed() -> None:
    for install, status in ((True, 409), (False, 500)):
        site = Site(install)

        @site.app.get("/")
        async def handle() -> None:
            raise FencedError("catalog")

        async with served(site.app, raises=False) as client:
            assert (await client.get("/")).status_code == status


async def test_a_busy_lock_is_409_and_says_when_to_come_back(site: Site) -> None:
    @site.app.get("/items/{item}")
    async def handle(item: str, guard: Annotated[WriteGuard, Depends(write_guard("{item}", wait=0))]) -> None: ...

    async with served(site.app) as client, held_elsewhere(site.x.write):
        answer = await client.get("/items/x")
        assert answer.status_code == 409
        assert problem_of(answer) == "lock-contended"
        assert answer.headers["retry-after"] == "30"
        document = answer.json()
        assert document["lock"] == "{item}"
        assert document["retry_after"] == 30
        assert document["title"]
        assert document["detail"]


async def test_a_busy_lock_is_waited_for_as_long_as_the_guard_says(site: Site) -> None:
    @site.app.get("/")
    async def handle(guard: Annotated[WriteGuard, Depends(write_guard("x", wait=3))]) -> None: ...

    async with served(site.app) as client, held_elsewhere(site.x.write):
        request = asyncio.create_task(client.get("/"))
        await site.clock.advance(2.9)
        assert not request.done()
        await site.clock.advance(0.2)
        assert (await request).status_code == 409


async def test_the_status_of_a_busy_lock_can_be_chosen(site: Site) -> None:
    @site.app.get("/", dependencies=[Depends(write_guard("x", wait=0, status=423))])
    async def handle() -> None: ...

    async with served(site.app) as client, held_elsewhere(site.x.write):
        answer = await client.get("/")
        assert answer.status_code == 423
        assert problem_of(answer) == "lock-contended"


async def test_a_guard_that_is_not_required_binds_none_when_it_is_busy(site: Site) -> None:
    @site.app.get("/one")
    async def one(guard: Annotated[ReadGuard | None, Depends(read_guard("x", required=False, wait=0))]) -> bool:
        return guard is None

    @site.app.get("/two")
    async def two(
        guards: Annotated[tuple[WriteGuard, ...] | None, Depends(write_guard("w", "x", required=False, wait=0))],
    ) -> bool:
        return guards is None

    @site.app.get("/lock")
    async def lock(guard: Annotated[LockHandle | None, Depends(lock_guard("l", required=False, wait=0))]) -> bool:
        return guard is None

    async with served(site.app) as client:
        async with held_elsewhere(site.x.write), held_elsewhere(Lock("l", backend=site.memory)):
            for url in ("/one", "/two", "/lock"):
                assert (await client.get(url)).json() is True
        for url in ("/one", "/two", "/lock"):
            assert (await client.get(url)).json() is False
        site.memory.deaf_to.add(Acquire)
        assert (await client.get("/one")).status_code == 503


async def test_a_store_that_does_not_answer_is_503(site: Site) -> None:
    @site.app.get("/", dependencies=[Depends(write_guard("x", wait=0))])
    async def handle() -> None: ...

    async with served(site.app) as client:
        site.memory.deaf_to.add(Acquire)
        answer = await client.get("/")
        assert answer.status_code == 503
        assert problem_of(answer) == "coordination-unavailable"
        assert int(answer.headers["retry-after"]) > 0
        assert "line is down" not in answer.text


async def test_a_process_that_shuts_down_sends_waiters_away(site: Site) -> None:
    @site.app.get("/", dependencies=[Depends(write_guard("x", wait=None))])
    async def handle() -> None: ...

    async with served(site.app) as client, held_elsewhere(site.x.write):
        request = asyncio.create_task(client.get("/"))
        await site.clock.settle()
        site.memory.backend.crew().drain()
        for answer in (await request, await client.get("/")):
            assert answer.status_code == 503
            assert problem_of(answer) == "shutting-down"
            assert answer.headers["retry-after"] == "1"


async def test_a_resource_that_refuses_the_token_is_409_and_not_to_be_repeated(site: Site) -> None:
    @site.app.get("/")
    async def handle(guard: Annotated[WriteGuard, Depends(write_guard("x"))]) -> None:
        raise FencedError("catalog")

    async with served(site.app) as client:
        answer = await client.get("/")
        assert answer.status_code == 409
        assert problem_of(answer) == "fenced"
        assert "retry-after" not in answer.headers


async def test_another_lock_that_is_busy_in_the_handler_is_the_same_answer(site: Site) -> None:
    @site.app.get("/")
    async def handle(guard: Annotated[WriteGuard, Depends(write_guard("w"))]) -> None:
        await site.x.write.acquire_nowait()

    async with served(site.app) as client, held_elsewhere(site.x.write):
        assert problem_of(await client.get("/")) == "lock-contended"


async def test_too_many_waiters_are_503(site: Site) -> None:
    @site.app.get("/")
    async def handle(guard: Annotated[WriteGuard, Depends(write_guard("x"))]) -> None:
        raise QueueFullError("10000 callers wait")

    async with served(site.app) as client:
        answer = await client.get("/")
        assert problem_of(answer) == "lock-queue-full"
        assert answer.headers["retry-after"] == "2"


async def test_no_answer_holds_a_token_or_the_name_it_was_asked_for(site: Site) -> None:
    secret = "someone@example.org"

    def key() -> str:
        return secret

    @site.app.get("/", dependencies=[Depends(write_guard("mailbox", key=key, wait=0))])
    async def handle() -> None: ...

    async with served(site.app) as client, held_elsewhere(ReadWriteLock(secret, backend=site.memory).write):
        answer = await client.get("/")
        assert problem_of(answer) == "lock-contended"
        assert answer.json()["lock"] == "mailbox"
        state = (await site.memory.backend.crew().store.peek(f"rwlock:{secret}")).state
        assert state.writer is not None
        for hidden in (secret, state.writer.token, state.writer.token.split(":")[0]):
            assert hidden not in answer.text


async def test_a_handler_of_the_user_for_the_status_wins(site: Site) -> None:
    @site.app.exception_handler(409)
    async def mine(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"mine": error.status_code}, 409, dict(error.headers or {}))

    @site.app.get("/", dependencies=[Depends(write_guard("x", wait=0))])
    async def handle() -> None: ...

    async with served(site.app) as client, held_elsewhere(site.x.write):
        answer = await client.get("/")
        assert answer.json() == {"mine": 409}
        assert answer.headers["retry-after"] == "30"


@pytest.mark.parametrize("kind", [LockTimeoutError, WouldBlockError])
async def test_a_handler_of_the_user_for_the_error_wins(site: Site, kind: type[Exception]) -> None:
    @site.app.exception_handler(kind)
    async def mine(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"mine": type(error).__name__}, 409)

    @site.app.get("/", dependencies=[Depends(write_guard("x", wait=0))])
    async def handle() -> None: ...

    async with served(site.app) as client, held_elsewhere(site.x.write):
        assert (await client.get("/")).json() == {"mine": "LockTimeoutError"}


async def test_a_handler_of_the_user_for_http_errors_stays_in_charge_where_nothing_is_installed() -> None:
    site = Site(install=False)

    @site.app.exception_handler(HTTPException)
    async def mine(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"mine": error.detail}, error.status_code)

    @site.app.get("/", dependencies=[Depends(write_guard("x", wait=0))])
    async def handle() -> None: ...

    async with served(site.app) as client, held_elsewhere(site.x.write):
        answer = await client.get("/")
        assert answer.status_code == 409
        assert "mine" in answer.json()


async def test_a_mounted_sub_app_gives_the_same_answers(site: Site) -> None:
    sub = FastAPI()

    @sub.get("/", dependencies=[Depends(write_guard("x", wait=0))])
    async def handle() -> None: ...

    site.app.mount("/sub", sub)
    async with served(site.app) as client:
        assert (await client.get("/sub/")).status_code == 200
        async with held_elsewhere(site.x.write):
            answer = await client.get("/sub/")
            assert problem_of(answer) == "lock-contended"
            assert answer.json()["lock"] == "x"


async def test_an_app_that_nobody_opened_says_what_to_do(site: Site) -> None:
    @site.app.get("/", dependencies=[Depends(write_guard("x", wait=0))])
    async def handle() -> None: ...

    def answer() -> Any:
        # Without `with`, TestClient runs no lifespan.
        return TestClient(site.app).get("/")

    got = await asyncio.to_thread(answer)
    assert got.status_code == 503
    assert got.json()["type"].endswith(":coordination-unavailable")
    for cure in ("lifespan=micro.lifespan", "with TestClient(app)", "LifespanManager", "backend="):
        assert cure in got.json()["detail"]


async def test_whoever_may_not_ask_takes_no_lock(site: Site) -> None:
    def user(authorization: str = "") -> str:
        if authorization != "me":
            raise HTTPException(401)
        return authorization

    def key(user: Annotated[str, Depends(user)]) -> str:
        return f"cart:{user}"

    @site.app.get("/required", dependencies=[Depends(write_guard("x", requires=[user]))])
    async def required() -> None: ...

    @site.app.get("/marked", dependencies=[Depends(write_guard("x", requires=[Depends(user)]))])
    async def marked() -> None: ...

    @site.app.get("/keyed")
    async def keyed(guard: Annotated[WriteGuard, Depends(write_guard("cart", key=key))]) -> str:
        return guard.name

    async with served(site.app) as client:
        for url in ("/required", "/marked", "/keyed"):
            assert (await client.get(url)).status_code == 401
        assert [name async for name in site.memory.backend.crew().store.keys("")] == []
        assert (await client.get("/required?authorization=me")).status_code == 200
        assert (await client.get("/marked?authorization=me")).status_code == 200
        assert (await client.get("/keyed?authorization=me")).json() == "cart:me"


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 513, 7])
async def test_a_key_that_is_no_name_is_misuse(site: Site, name: Any) -> None:
    def key() -> Any:
        return name

    @site.app.get("/", dependencies=[Depends(write_guard("x", key=key))])
    async def handle() -> None: ...

    async with served(site.app) as client:
        assert problem_of(await client.get("/")) == "guard-misuse"


async def test_another_provider_can_be_named(site: Site) -> None:
    other = FlakyProvider()

    @site.app.get("/", dependencies=[Depends(write_guard("x", backend=other))])
    async def handle() -> None: ...

    async with served(site.app) as client:
        assert problem_of(await client.get("/")) == "coordination-unavailable"
        async with other:
            assert (await client.get("/")).status_code == 200
            assert (await ReadWriteLock("x", backend=other).state()).generation == 1
        assert (await site.x.state()).generation == 0


def websockets(site: Site, handle: Callable[..., Any]) -> TestClient:
    site.app.websocket("/")(handle)

    @site.app.post("/hold", dependencies=[Depends(write_guard("x", hold="response"))])
    async def hold() -> None: ...

    return TestClient(site.app)


def test_a_busy_websocket_is_refused_with_the_whole_answer(site: Site) -> None:
    async def talk(socket: WebSocket, guard: Annotated[WriteGuard, Depends(write_guard("x", wait=0))]) -> None:
        await socket.accept()
        await socket.send_text("in")
        await socket.receive_text()

    with websockets(site, talk) as client:
        with client.websocket_connect("/") as first:
            assert first.receive_text() == "in"
            with pytest.raises(WebSocketDisconnect) as refused, client.websocket_connect("/"):
                pass
            answer: Any = refused.value
            assert answer.status_code == 409
            assert answer.headers["retry-after"] == "30"
            assert answer.json()["type"].endswith(":lock-contended")
            first.send_text("bye")
        with client.websocket_connect("/") as again:
            assert again.receive_text() == "in"
            again.send_text("bye")


def test_a_websocket_whose_lease_is_lost_is_closed_with_1013(site: Site) -> None:
    async def talk(socket: WebSocket, guard: Annotated[WriteGuard, Depends(write_guard("x"))]) -> None:
        await socket.accept()
        site.clock.jump(61)
        guard.check()

    with websockets(site, talk) as client, client.websocket_connect("/") as socket:
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_text()
        assert closed.value.code == 1013
        assert closed.value.reason == "guard-lost"


async def test_errors_of_handlers_without_a_guard_are_answered_once_installed() -> None:
    site = Site(install=True)

    @site.app.get("/busy")
    async def busy() -> None:
        await site.x.write.acquire_nowait()

    @site.app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("not ours")

    async with served(site.app, raises=False) as client:
        async with held_elsewhere(site.x.write):
            assert problem_of(await client.get("/busy")) == "lock-contended"
        assert (await client.get("/broken")).status_code == 500
        assert await elsewhere(site.x.write.locked()) is False
