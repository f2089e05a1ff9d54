from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI

from grelmicro_fastapi.app.grelmicro import Grelmicro
from grelmicro_fastapi.coordination.leaderelection import LeaderElection
from grelmicro_fastapi.coordination.leadership import Leadership
from grelmicro_fastapi.coordination.readwritelock import ReadWriteLock
from grelmicro_fastapi.tasks.tasks import Tasks
from grelmicro_fastapi.testing.clock import ManualClock
from grelmicro_fastapi.web.leader import leader_guard
from grelmicro_fastapi.web.lint import lint
from grelmicro_fastapi.web.methods import method_guard
from tests.web.serving import FlakyProvider, held_elsewhere, problem_of, served

pytestmark = pytest.mark.anyio


class Site:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = FlakyProvider(clock=self.clock)
        self.election = LeaderElection("main")
        self.app = FastAPI(lifespan=Grelmicro(uses=[self.memory, self.election, Tasks()], drain=0).lifespan)


async def test_only_the_leader_answers(caplog: pytest.LogCaptureFixture) -> None:
    site = Site()

    @site.app.get("/")
    async def handle(leadership: Annotated[Leadership, Depends(leader_guard("main"))]) -> int:
        return leadership.fencing_token

    @site.app.get("/object")
    async def by_object(leadership: Annotated[Leadership, Depends(leader_guard(site.election))]) -> int:
        return leadership.term

    @site.app.get("/maybe")
    async def maybe(leadership: Annotated[Leadership | None, Depends(leader_guard("main", required=False))]) -> bool:
        return leadership is not None

    @site.app.get("/unknown", dependencies=[Depends(leader_guard("nobody"))])
    async def unknown() -> None: ...

    async with served(site.app) as client:
        await site.clock.advance(3)
        assert (await client.get("/")).json() == 1
        assert (await client.get("/object")).json() == 1
        assert (await client.get("/maybe")).json() is True
        answer = await client.get("/unknown")
        assert answer.status_code == 500
        assert problem_of(answer) == "guard-misuse"
        assert "leader_guard('nobody'): the app stands in 'main', 'tasks' only" in caplog.text


async def test_a_process_that_does_not_lead_says_so() -> None:
    site = Site()

    @site.app.get("/", dependencies=[Depends(leader_guard("main"))])
    async def handle() -> None: ...

    @site.app.get("/maybe")
    async def maybe(leadership: Annotated[Leadership | None, Depends(leader_guard("main", required=False))]) -> bool:
        return leadership is not None

    async with site.memory, LeaderElection("main", backend=site.memory) as other:
        await site.clock.advance(3)
        assert other.is_leader()
        async with served(site.app) as client:
            await site.clock.advance(3)
            answer = await client.get("/")
            assert answer.status_code == 503
            assert problem_of(answer) == "not-leader"
            assert int(answer.headers["retry-after"]) >= 1
            assert (await client.get("/maybe")).json() is False


async def test_a_term_that_ends_on_the_way_turns_a_good_answer_into_503() -> None:
    site = Site()

    @site.app.get("/")
    async def handle(leadership: Annotated[Leadership, Depends(leader_guard("main"))]) -> str:
        site.clock.jump(20)
        return "done"

    async with served(site.app) as client:
        await site.clock.advance(3)
        answer = await client.get("/")
        assert answer.status_code == 503
        assert problem_of(answer) == "not-leader"


async def test_a_guard_by_method_reads_on_safe_methods_and_writes_on_others() -> None:
    memory = FlakyProvider()
    micro = Grelmicro(uses=[memory])
    app = FastAPI()
    micro.install(app)
    catalog = APIRouter(dependencies=[Depends(method_guard("x", wait=0, etag=True, if_match="optional"))])
    x = ReadWriteLock("x", backend=memory)

    async def handle() -> list[Any]:
        state = await x.state()
        return [state.readers, state.writing]

    catalog.get("/")(handle)
    catalog.put("/")(handle)
    app.include_router(catalog)
    async with served(app) as client:
        assert (await client.get("/")).json() == [1, False]
        assert (await client.put("/")).json() == [0, True]
        async with held_elsewhere(x.read):
            assert (await client.get("/")).headers["etag"] == '"g1"'
            assert (await client.put("/")).status_code == 409
        assert (await client.put("/", headers={"if-match": '"g0"'})).status_code == 412
    assert method_guard("x") == method_guard("x")
    assert repr(method_guard("x", wait=0)) == "method_guard('x', wait=0)"
    assert lint(app) == []
    path = app.openapi()["paths"]["/"]
    assert [path[method]["x-guards"][0]["mode"] for method in ("get", "put")] == ["read", "write"]
