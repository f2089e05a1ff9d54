"""When a guard is released, and what becomes of the answer and the poison."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.requests import Request

from grelmicro_fastapi.app.grelmicro import Grelmicro
from grelmicro_fastapi.coordination.guards import ReadGuard, WriteGuard
from grelmicro_fastapi.coordination.readwritelock import ReadWriteLock
from grelmicro_fastapi.coordination.state import Release
from grelmicro_fastapi.testing.clock import ManualClock
from grelmicro_fastapi.web.dependencies import read_guard, write_guard
from tests.web.serving import FlakyProvider, elsewhere, held_elsewhere, problem_of, served

pytestmark = pytest.mark.anyio


class Site:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = FlakyProvider(clock=self.clock)
        self.app = FastAPI(lifespan=Grelmicro(uses=[self.memory]).lifespan)
        self.x = ReadWriteLock("x", backend=self.memory)
        self.seen: list[str] = []

    async def note(self, what: str) -> None:
        state = await self.x.state()
        self.seen.append(f"{what}: {'held' if state.writing or state.readers else 'free'}")


@pytest.fixture
def site() -> Site:
    return Site()


async def test_the_lock_is_free_before_the_answer_is_sent(site: Site) -> None:
    @site.app.get("/", dependencies=[Depends(write_guard("x"))])
    async def handle(after: BackgroundTasks) -> StreamingResponse:
        after.add_task(site.note, "background")
        await site.note("handler")
        return StreamingResponse(body())

    async def body() -> AsyncIterator[bytes]:
        await site.note("body")
        yield b"."

    async with served(site.app) as client:
        await client.get("/")
    assert site.seen == ["handler: held", "body: free", "background: free"]


async def test_until_the_response_covers_the_body_and_the_background_tasks(site: Site) -> None:
    @site.app.get("/", dependencies=[Depends(write_guard("x", hold="response"))])
    async def handle(after: BackgroundTasks) -> StreamingResponse:
        after.add_task(site.note, "background")
        return StreamingResponse(body())

    async def body() -> AsyncIterator[bytes]:
        await site.note("body")
        yield b"."

    async with served(site.app) as client:
        await client.get("/")
        await site.note("afterwards")
    assert site.seen == ["body: held", "background: held", "afterwards: free"]


@pytest.mark.parametrize("first", ["handler", "response"])
async def test_uses_with_different_ends_release_at_the_later_one(site: Site, first: Any) -> None:
    second: Any = {"handler": "response", "response": "handler"}[first]
    guards = [Depends(write_guard("x", hold=hold)) for hold in (first, second)]

    @site.app.get("/", dependencies=guards)
    async def handle(after: BackgroundTasks) -> None:
        after.add_task(site.note, "background")

    async with served(site.app) as client:
        await client.get("/")
        await site.note("afterwards")
    assert site.seen == ["background: held", "afterwards: free"]


async def test_without_the_private_stack_of_fastapi_the_lock_is_held_longer_and_never_leaks(site: Site) -> None:

    @site.app.get("/")
    async def handle(guard: Annotated[WriteGuard, Depends(write_guard("x"))], after: BackgroundTasks) -> int:
        after.add_task(site.note, "background")
        return guard.fencing_token

    guard = write_guard("x")
    inner = guard._use

    def without(conn: Any, given: Any, *, streams: bool) -> Any:
        conn.scope = {name: value for name, value in conn.scope.items() if name != "fastapi_function_astack"}
        return inner(conn, given, streams=streams)

    object.__setattr__(guard, "_use", without)
    site.app.dependency_overrides[guard] = guard
    async with served(site.app) as client:
        assert (await client.get("/")).json() == 1
        await site.note("afterwards")
    assert site.seen == ["background: held", "afterwards: free"]


async def test_sync_handlers_are_guarded_too(site: Site) -> None:
    @site.app.get("/")
    def handle(guard: Annotated[WriteGuard, Depends(write_guard("x"))]) -> int:
        guard.check()
        return guard.fencing_token

    async with served(site.app) as client:
        answers = await asyncio.gather(*[client.get("/") for _ in range(60)])
    assert sorted(answer.json() for answer in answers) == list(range(1, 61))


async def test_a_session_that_commits_at_its_end_commits_under_the_lock(site: Site) -> None:
    async def session(guard: Annotated[WriteGuard, Depends(write_guard("x", hold="response"))]) -> AsyncIterator[str]:
        yield "session"
        await site.note("commit")

    @site.app.get("/")
    async def handle(session: Annotated[str, Depends(session)]) -> None: ...

    async with served(site.app) as client:
        await client.get("/")
    assert site.seen == ["commit: held"]


async def poisoned(site: Site) -> bool:
    return (await site.x.state()).poisoned


async def poison(site: Site) -> None:
    async def spoil() -> None:
        await (await site.x.write.acquire()).release(poison=True)

    await elsewhere(spoil())


class Rows(BaseModel):
    rows: list[str]


async def test_only_a_good_body_ends_poison(site: Site) -> None:
    def deny() -> None:
        raise HTTPException(403)

    @site.app.put("/catalog")
    async def replace(rows: Rows, guard: Annotated[WriteGuard, Depends(write_guard("x"))]) -> bool:
        if rows.rows == ["bad"]:
            raise HTTPException(400)
        if rows.rows == ["broken"]:
            raise RuntimeError("broken")
        return guard.poisoned

    @site.app.put("/denied", dependencies=[Depends(write_guard("x")), Depends(deny)])
    async def denied() -> None: ...

    async with served(site.app, raises=False) as client:
        await poison(site)
        for url, body, status in [
            ("/catalog", {"nonsense": 1}, 422),
            ("/catalog", {"rows": ["bad"]}, 400),
            ("/catalog", {"rows": ["broken"]}, 500),
            ("/denied", {}, 403),
        ]:
            assert (await client.put(url, json=body)).status_code == status
            assert await poisoned(site), url
        assert (await client.put("/catalog", json={"rows": []})).json() is True
        assert not await poisoned(site)
        assert (await client.put("/catalog", json={"rows": []})).json() is False
        await client.put("/catalog", json={"rows": ["broken"]})
        assert not await poisoned(site)


async def test_an_answer_that_cannot_be_written_down_does_not_end_poison(site: Site) -> None:
    @site.app.put("/", response_model=int)
    async def replace(guard: Annotated[WriteGuard, Depends(write_guard("x"))]) -> Any:
        return "not a number"

    async with served(site.app, raises=False) as client:
        await poison(site)
        assert (await client.put("/")).status_code == 500
        assert await poisoned(site)


async def test_a_lease_that_was_lost_turns_a_good_answer_into_503(site: Site) -> None:
    for hold in ("handler", "response"):

        @site.app.get(f"/{hold}")
        async def handle(guard: Annotated[WriteGuard, Depends(write_guard("x", hold=hold))]) -> None:  # type: ignore[arg-type]  # the loop
            site.clock.jump(61)
            assert guard.lost

    async with served(site.app) as client:
        for hold in ("handler", "response"):
            answer = await client.get(f"/{hold}")
            assert answer.status_code == 503
            assert problem_of(answer) == "guard-lost"
            assert "retry-after" not in answer.headers
            assert not (await site.x.state()).writing


async def test_a_check_that_fails_in_the_handler_is_the_same_answer(site: Site) -> None:
    @site.app.get("/")
    async def handle(guard: Annotated[ReadGuard, Depends(read_guard("x"))]) -> None:
        site.clock.jump(61)
        guard.check()

    async with served(site.app) as client:
        assert problem_of(await client.get("/")) == "guard-lost"


async def test_a_loss_never_masks_the_error_of_the_handler(site: Site) -> None:
    @site.app.get("/")
    async def handle(guard: Annotated[WriteGuard, Depends(write_guard("x"))]) -> None:
        site.clock.jump(61)
        raise RuntimeError("the handler's own")

    async with served(site.app) as client:
        with pytest.raises(RuntimeError, match="the handler's own") as raised:
            await client.get("/")
        assert "'x'" in "".join(raised.value.__notes__)


async def test_a_loss_after_the_answer_was_sent_is_logged_and_nothing_more(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    @site.app.get("/", dependencies=[Depends(write_guard("x", hold="response"))])
    async def handle(after: BackgroundTasks) -> str:
        after.add_task(site.clock.jump, 61)
        return "done"

    async with served(site.app) as client:
        assert (await client.get("/")).json() == "done"
    assert "the answer was sent already" in caplog.text


async def test_a_lease_is_kept_alive_as_long_as_the_handler_runs(site: Site) -> None:
    @site.app.get("/")
    async def handle(guard: Annotated[WriteGuard, Depends(write_guard("x", lease_duration=10))]) -> int:
        await site.clock.advance(50)
        return guard.fencing_token

    @site.app.get("/mortal")
    async def mortal(
        guard: Annotated[WriteGuard, Depends(write_guard("x", lease_duration=10, keep_alive=False))],
    ) -> None:
        await site.clock.advance(50)

    async with served(site.app) as client:
        assert (await client.get("/")).json() == 1
        assert problem_of(await client.get("/mortal")) == "guard-lost"


async def test_a_lost_lease_can_cancel_an_async_handler(site: Site) -> None:
    reached, passing = False, list[asyncio.Task[None]]()

    @site.app.get("/")
    async def handle(
        guard: Annotated[WriteGuard, Depends(write_guard("x", lease_duration=10, keep_alive=False, on_lost="cancel"))],
    ) -> None:
        nonlocal reached
        site.clock.jump(9)
        passing.append(asyncio.create_task(site.clock.advance(2)))
        await asyncio.get_running_loop().create_future()
        reached = True

    async with served(site.app) as client:
        answer = await asyncio.create_task(client.get("/"))
        assert problem_of(answer) == "guard-lost"
        assert not reached
        await passing[0]
        assert not (task := asyncio.current_task()) or task.cancelling() == 0


async def test_a_release_that_is_not_confirmed_does_not_change_the_answer(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    @site.app.get("/")
    async def handle(guard: Annotated[WriteGuard, Depends(write_guard("x"))]) -> int:
        site.memory.deaf_to.add(Release)
        return guard.fencing_token

    async with served(site.app) as client:
        assert (await client.get("/")).json() == 1
        assert "is not confirmed" in caplog.text
        assert (await site.x.state()).writing
        site.memory.deaf_to.clear()
        await site.clock.advance(10)
        assert not (await site.x.state()).writing


async def test_a_guard_released_by_the_handler_is_released_once(site: Site) -> None:
    @site.app.get("/")
    async def handle(guard: Annotated[WriteGuard, Depends(write_guard("x"))]) -> None:
        await guard.release(poison=True)
        await site.note("released")

    @site.app.get("/publish")
    async def publish(guard: Annotated[WriteGuard, Depends(write_guard("x"))]) -> int:
        reading = await guard.downgrade()
        try:
            return reading.generation
        finally:
            await reading.release()

    async with served(site.app) as client:
        assert (await client.get("/")).status_code == 200
        assert site.seen == ["released: free"]
        assert await poisoned(site)
        assert (await client.get("/publish")).json() == 2
        assert (await client.get("/publish")).json() == 3


async def test_a_request_that_is_cancelled_releases(site: Site) -> None:
    inside = asyncio.Event()

    @site.app.get("/", dependencies=[Depends(write_guard("x"))])
    async def handle() -> None:
        inside.set()
        await asyncio.get_running_loop().create_future()

    async with served(site.app) as client:
        await poison(site)
        request = asyncio.create_task(client.get("/"))
        await inside.wait()
        request.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await request
        assert not (await site.x.state()).writing
        assert await poisoned(site)


async def test_a_request_that_is_cancelled_while_it_releases_gives_everything_back(site: Site) -> None:
    a = ReadWriteLock("a", backend=site.memory)

    @site.app.get("/", dependencies=[Depends(write_guard("x", "a"))])
    async def handle() -> None:
        site.memory.gate.clear()

    async with served(site.app) as client:
        request = asyncio.create_task(client.get("/"))
        await site.clock.settle()
        assert (await site.x.state()).writing
        request.cancel()
        await site.clock.settle()
        site.memory.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await request
        await site.clock.settle()
        assert not (await site.x.state()).writing
        assert not (await a.state()).writing


async def somebody_waits(site: Site) -> None:
    for _ in range(1000):
        if (await site.x.state()).waiting_writers:
            return
        await asyncio.sleep(0)
    raise AssertionError("nobody waits")


async def test_a_request_that_is_cancelled_while_it_waits_leaves_nothing(site: Site) -> None:
    @site.app.get("/", dependencies=[Depends(write_guard("x", wait=None))])
    async def handle() -> None: ...

    async with served(site.app) as client:
        async with held_elsewhere(site.x.write):
            request = asyncio.create_task(client.get("/"))
            await somebody_waits(site)
            request.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await request
            await site.clock.settle()
            assert (await site.x.state()).waiting_writers == 0
        assert (await client.get("/")).status_code == 200


async def left_while_waiting(site: Site, headers: list[tuple[bytes, bytes]], messages: list[dict[str, Any]]) -> None:
    """Send a request, leave as soon as it waits, and see it go."""
    coming, sent = iter(messages), list[dict[str, Any]]()
    left = asyncio.Event()

    async def receive() -> dict[str, Any]:
        for message in coming:
            return message
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http", "method": "POST", "path": "/", "headers": headers, "query_string": b"", "http_version": "1.1",
    }  # fmt: skip
    async with served(site.app), held_elsewhere(site.x.write):
        request = asyncio.create_task(site.app(scope, receive, send))
        await somebody_waits(site)
        left.set()
        await request
        await site.clock.settle()
        assert (await site.x.state()).waiting_writers == 0
    assert sent[0]["status"] == 409


async def test_a_client_that_leaves_waits_no_more(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.app = FastAPI(lifespan=Grelmicro(uses=[site.memory]).lifespan)
    monkeypatch.setattr("grelmicro_fastapi.web.disconnect.PATIENCE", 0.0)

    @site.app.post("/", dependencies=[Depends(write_guard("x", wait=None))])
    async def handle() -> None:
        raise AssertionError("unreachable")

    await left_while_waiting(site, [], [{"type": "http.request", "body": b""}])


async def test_a_client_that_leaves_after_its_body_was_read_waits_no_more(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grelmicro_fastapi.web.disconnect.PATIENCE", 0.0)

    @site.app.post("/", dependencies=[Depends(write_guard("x", wait=None))])
    async def handle(rows: Rows) -> None:
        raise AssertionError("unreachable")

    body = b'{"rows": []}'
    headers = [(b"content-type", b"application/json"), (b"content-length", b"12")]
    await left_while_waiting(site, headers, [{"type": "http.request", "body": body}])


@pytest.mark.parametrize("body", [b"", b"raw"])
async def test_a_handler_that_reads_the_body_itself_gets_it_after_a_wait(
    site: Site, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    monkeypatch.setattr("grelmicro_fastapi.web.disconnect.PATIENCE", 0.0)

    @site.app.post("/", dependencies=[Depends(write_guard("x", wait=None))])
    async def handle(request: Request) -> str:
        return (await request.body()).decode()

    async with asyncio.timeout(5), served(site.app) as client:
        async with held_elsewhere(site.x.write):
            request = asyncio.create_task(client.post("/", content=body))
            await somebody_waits(site)
            await site.clock.settle()
        assert (await request).json() == body.decode()


async def test_a_handler_that_yields_its_answer_is_refused_unless_the_lock_covers_it(site: Site) -> None:
    @site.app.get("/", dependencies=[Depends(write_guard("x"))], response_model=None)
    async def rows() -> AsyncIterator[str]:
        yield "row"

    @site.app.get("/sync", dependencies=[Depends(write_guard("x"))], response_model=None)
    def sync_rows() -> Iterator[str]:
        yield "row"

    async with served(site.app) as client:
        for url in ("/", "/sync"):
            assert problem_of(await client.get(url)) == "guard-misuse"
        assert (await site.x.state()).generation == 0
