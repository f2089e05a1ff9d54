import logging
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, Query, Security
from fastapi.responses import StreamingResponse
from fastapi.security import HTTPBearer, OAuth2PasswordBearer, SecurityScopes

from grelmicro_fastapi.app.grelmicro import Grelmicro
from grelmicro_fastapi.coordination.guards import LockHandle, ReadGuard, WriteGuard
from grelmicro_fastapi.coordination.leaderelection import LeaderElection
from grelmicro_fastapi.errors import CoordinationError
from grelmicro_fastapi.providers.memory import MemoryProvider
from grelmicro_fastapi.tasks.tasks import Tasks
from grelmicro_fastapi.web.dependencies import lock_guard, read_guard, write_guard
from grelmicro_fastapi.web.leader import leader_guard
from grelmicro_fastapi.web.lint import lint
from tests.web import unresolved
from tests.web.serving import served

pytestmark = pytest.mark.anyio

bearer = HTTPBearer()


def codes(app: FastAPI) -> list[str]:
    return sorted(finding.code for finding in lint(app))


def app_of(*endpoints: Any, **options: Any) -> FastAPI:
    app = FastAPI()
    for number, endpoint in enumerate(endpoints):
        app.get(f"/{number}/{{item}}", response_model=None, **options)(endpoint)
    return app


async def plain(item: str) -> None: ...


class Session:
    def commit(self) -> None: ...


async def session() -> AsyncIterator[Session]:
    session = Session()
    yield session
    session.commit()


def transaction() -> Iterator[Session]:
    yield Session()
    Session().commit()


async def client() -> AsyncIterator[str]:
    yield "an HTTP client"


def test_a_finding_names_the_route_the_guard_the_reason_and_the_cure() -> None:
    router = APIRouter(prefix="/shop")
    router.put("/x/{item}", dependencies=[Depends(read_guard("x")), Depends(write_guard("x"))])(plain)
    app = FastAPI()
    app.include_router(router)
    [finding] = lint(app)
    assert finding.code == "two-modes"
    assert finding.route == "PUT /shop/x/{item}"
    assert finding.guard == "write_guard('x')"
    assert finding.reason
    assert finding.cure
    assert str(finding).startswith("two-modes: PUT /shop/x/{item}: write_guard('x'): ")


def test_reading_and_writing_one_name() -> None:
    both = [Depends(read_guard("x")), Depends(write_guard("y", "x"))]
    assert codes(app_of(plain, dependencies=both)) == ["two-modes"]
    fine = [Depends(read_guard("x")), Depends(write_guard("y")), Depends(lock_guard("x"))]
    assert codes(app_of(plain, dependencies=fine)) == []


def test_opposite_orders_of_two_routes() -> None:
    async def ab(
        item: str,
        a: Annotated[WriteGuard, Depends(write_guard("a"))],
        b: Annotated[ReadGuard, Depends(read_guard("b"))],
    ) -> None: ...
    async def ba(
        item: str,
        b: Annotated[WriteGuard, Depends(write_guard("b"))],
        a: Annotated[WriteGuard, Depends(write_guard("a"))],
    ) -> None: ...
    async def sorted_ba(item: str, both: Annotated[tuple[WriteGuard, ...], Depends(write_guard("b", "a"))]) -> None: ...

    app = app_of(ab, ba)
    [finding] = lint(app)
    assert finding.code == "opposite-orders"
    assert "GET /0/{item}" in finding.reason
    assert finding.route == "GET /1/{item}"
    assert codes(app_of(ab, sorted_ba)) == []
    assert codes(app_of(ba, sorted_ba)) == ["opposite-orders"]


def test_a_placeholder_that_no_parameter_stands_for() -> None:
    async def wrong(item: str, guard: Annotated[WriteGuard, Depends(write_guard("{itme}"))]) -> None: ...
    async def undeclared(guard: Annotated[WriteGuard, Depends(write_guard("{item}"))]) -> None: ...
    async def right(
        item: str, guard: Annotated[WriteGuard, Depends(write_guard("{item}:{page}"))], page: int = Query(1)
    ) -> None: ...
    async def keyed(item: str, guard: Annotated[WriteGuard, Depends(write_guard("{x}", key=plain))]) -> None: ...

    assert codes(app_of(wrong)) == ["unknown-placeholder"]
    assert codes(app_of(undeclared)) == ["unknown-placeholder"]
    assert codes(app_of(right, keyed)) == []
    converted = FastAPI()
    converted.get("/{item:int}")(undeclared)
    assert codes(converted) == []


def test_a_stream_that_the_lock_does_not_cover() -> None:
    async def rows(item: str) -> AsyncIterator[str]:
        yield "row"

    def sync_rows(item: str) -> Iterator[str]:
        yield "row"

    async def stream(item: str) -> StreamingResponse:
        return StreamingResponse([])

    guard, covering = [Depends(read_guard("x"))], [Depends(read_guard("x", hold="response"))]
    assert codes(app_of(rows, sync_rows, stream, dependencies=guard)) == ["unlocked-stream"] * 3
    assert codes(app_of(plain, dependencies=guard, response_class=StreamingResponse)) == ["unlocked-stream"]
    assert codes(app_of(rows, sync_rows, stream, dependencies=covering)) == []
    assert codes(app_of(rows, sync_rows, stream)) == []


def test_a_commit_after_the_lock_was_released() -> None:
    for opener in (session, transaction):
        opened = Depends(opener)
        assert codes(app_of(plain, dependencies=[opened, Depends(write_guard("x"))])) == ["commit-after-unlock"]
        assert codes(app_of(plain, dependencies=[Depends(write_guard("x")), opened])) == ["commit-after-unlock"]
        assert codes(app_of(plain, dependencies=[opened, Depends(read_guard("x"))])) == []
        staying = Depends(write_guard("x", hold="response"))
        assert codes(app_of(plain, dependencies=[staying, opened])) == []
        assert codes(app_of(plain, dependencies=[opened, staying])) == ["commit-after-unlock"]
        assert codes(app_of(plain, dependencies=[staying, opened, Depends(write_guard("x"))])) == []
        shorter = Depends(opener, scope="function")
        assert codes(app_of(plain, dependencies=[Depends(write_guard("x")), shorter])) == []
    assert codes(app_of(plain, dependencies=[Depends(client), Depends(write_guard("x"))])) == []


def test_a_commit_of_a_shorter_session_that_ends_after_the_guard() -> None:
    # Opened before the guard, it ends after it, even though both end with the handler.
    shorter = Depends(session, scope="function")
    assert codes(app_of(plain, dependencies=[shorter, Depends(write_guard("x"))])) == ["commit-after-unlock"]


def test_a_guard_before_whoever_asks_is_known() -> None:
    oauth = OAuth2PasswordBearer("/token")

    def user(token: Annotated[str, Depends(oauth)]) -> str:
        return token

    guard, known = Depends(write_guard("x")), Depends(user)
    assert codes(app_of(plain, dependencies=[guard, known])) == ["guard-before-auth"]
    assert codes(app_of(plain, dependencies=[known, guard])) == []
    assert codes(app_of(plain, dependencies=[Depends(write_guard("x", requires=[user])), known])) == []
    assert codes(app_of(plain, dependencies=[guard, Depends(bearer)])) == ["guard-before-auth"]

    def scoped(scopes: SecurityScopes) -> None: ...

    assert codes(app_of(plain, dependencies=[guard, Security(scoped, scopes=["write"])])) == ["guard-before-auth"]
    assert codes(app_of(plain, dependencies=[Security(scoped, scopes=["write"]), guard])) == []

    # What it does is its own affair: nobody but its author knows that it looks at who asks.
    def private(authorization: Annotated[str, Header()]) -> None: ...

    assert codes(app_of(plain, dependencies=[guard, Depends(private)])) == []


async def test_an_election_that_the_app_does_not_stand_in(caplog: pytest.LogCaptureFixture) -> None:
    main = LeaderElection("main")
    guards = [leader_guard("main"), leader_guard(main), leader_guard("mian")]
    app = app_of(plain, dependencies=[Depends(guard) for guard in guards])
    assert codes(app) == []
    micro = Grelmicro(uses=[MemoryProvider(), main, Tasks(election=LeaderElection("night"))])
    assert sorted(micro.elections) == ["main", "night"]
    (finding,) = lint(app, micro.elections)
    assert finding.code == "unknown-election"
    assert "leader_guard('mian'): the app stands in 'main', 'night' only" in str(finding)
    micro.install(app)
    with caplog.at_level(logging.WARNING, logger="grelmicro_fastapi.lint"):
        async with served(app):
            pass
    assert "unknown-election: GET /0/{item}" in caplog.text


def test_an_annotation_that_fastapi_could_not_resolve() -> None:
    app = FastAPI()
    unresolved.add_routes(app)
    findings = {finding.route: finding.code for finding in lint(app)}
    routes = ("GET /local", "GET /hidden", "GET /alias", "GET /nested")
    assert findings == dict.fromkeys(routes, "unresolved-annotation")


def test_an_annotation_that_names_another_guard() -> None:
    async def wrong(item: str, guard: Annotated[WriteGuard, Depends(read_guard("x"))]) -> None: ...
    async def optional(
        item: str, guard: Annotated[ReadGuard | None, Depends(write_guard("x", required=False))]
    ) -> None: ...
    async def many(
        item: str, guards: Annotated[tuple[LockHandle, LockHandle], Depends(write_guard("x", "y"))]
    ) -> None: ...
    async def nested(guard: Annotated[WriteGuard, Depends(read_guard("x"))]) -> None: ...
    async def right(
        item: str,
        a: Annotated[WriteGuard, Depends(write_guard("a"))],
        b: Annotated[ReadGuard | None, Depends(read_guard("b", required=False))],
        c: Annotated[tuple[LockHandle, ...], Depends(lock_guard("c", "d"))],
        e: Annotated[object, Depends(write_guard("e"))],
    ) -> None: ...
    async def by_default(item: str, guard: WriteGuard = Depends(read_guard("x"))) -> None: ...  # noqa: B008 - this form is what is tested

    for endpoint in (wrong, optional, many, by_default):
        assert codes(app_of(endpoint)) == ["other-type"], endpoint
    assert codes(app_of(plain, dependencies=[Depends(nested)])) == ["other-type"]
    assert codes(app_of(right)) == []


def test_mounted_apps_and_websockets_are_looked_at_too() -> None:
    app, sub = FastAPI(), FastAPI()
    guards = [Depends(read_guard("x")), Depends(write_guard("x"))]
    sub.get("/{item}", dependencies=guards)(plain)
    app.websocket("/talk/{item}", dependencies=guards)(plain)
    app.mount("/sub", sub)
    assert {finding.route for finding in lint(app)} == {"GET /sub/{item}", "WEBSOCKET /talk/{item}"}


async def test_findings_are_told_at_start_up(caplog: pytest.LogCaptureFixture) -> None:
    app = app_of(plain, dependencies=[Depends(read_guard("x")), Depends(write_guard("x"))])
    Grelmicro(uses=[MemoryProvider()]).install(app)
    with caplog.at_level(logging.WARNING, logger="grelmicro_fastapi.lint"):
        async with served(app):
            pass
    assert "two-modes: GET /0/{item}" in caplog.text


async def test_findings_keep_a_strict_app_from_starting() -> None:
    app = app_of(plain, dependencies=[Depends(read_guard("x")), Depends(write_guard("x"))])
    Grelmicro(uses=[MemoryProvider()], strict=True).install(app)
    with pytest.raises(CoordinationError, match="two-modes"):
        async with served(app):
            pass
    fine = app_of(plain, dependencies=[Depends(read_guard("x"))])
    Grelmicro(uses=[MemoryProvider()], strict=True).install(fine)
    async with served(fine):
        pass
