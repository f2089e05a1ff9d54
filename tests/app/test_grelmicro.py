import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.testclient import TestClient

from grelmicro_fastapi import context
from grelmicro_fastapi.app.grelmicro import Grelmicro
from grelmicro_fastapi.coordination.coordination import Coordination
from grelmicro_fastapi.coordination.guards import WriteGuard
from grelmicro_fastapi.coordination.leaderelection import LeaderElection
from grelmicro_fastapi.coordination.lock import Lock
from grelmicro_fastapi.coordination.readwritelock import ReadWriteLock
from grelmicro_fastapi.coordination.state import Vacate
from grelmicro_fastapi.errors import DrainingError, NotRunningError, SettingsValidationError
from grelmicro_fastapi.providers.memory import MemoryProvider
from grelmicro_fastapi.tasks.tasks import Tasks
from grelmicro_fastapi.testing.clock import ManualClock
from grelmicro_fastapi.web.dependencies import write_guard
from tests.web.serving import FlakyProvider, served

pytestmark = pytest.mark.anyio


class Part:
    """Something of the user's that is opened and closed with the app."""

    def __init__(self, name: str, log: list[str], fails: str = "") -> None:
        self.name, self.log, self.fails = name, log, fails

    async def __aenter__(self) -> None:
        self.log.append(f"+{self.name}")
        if self.fails == "open":
            raise RuntimeError(self.name)

    async def __aexit__(self, *error: object) -> None:
        self.log.append(f"-{self.name}")
        if self.fails == "close":
            raise RuntimeError(self.name)


def is_open(provider: MemoryProvider) -> bool:
    try:
        provider.backend.crew()
    except NotRunningError:
        return False
    return True


async def test_stores_open_first_and_everything_closes_in_reverse() -> None:
    memory, log = MemoryProvider(), list[str]()

    class UsesLocks(Part):
        async def __aenter__(self) -> None:
            async with Lock("x"):
                await super().__aenter__()

        async def __aexit__(self, *error: object) -> None:
            async with Lock("x"):
                await super().__aexit__()

    async with Grelmicro(uses=[UsesLocks("a", log), None, Part("b", log), Coordination(memory), memory]):
        assert is_open(memory)
    assert log == ["+a", "+b", "-b", "-a"]
    assert not is_open(memory)


async def test_what_fails_to_open_leaves_nothing_open() -> None:
    memory, log = MemoryProvider(), list[str]()
    micro = Grelmicro(uses=[memory, Part("a", log), Part("b", log, fails="open"), Part("c", log)])
    with pytest.raises(RuntimeError, match="b"):
        await micro.open()
    assert log == ["+a", "+b", "-a"]
    assert not is_open(memory)
    with pytest.raises(NotRunningError):
        context.current()


async def test_what_fails_to_close_keeps_nothing_else_open() -> None:
    memory, log = MemoryProvider(), list[str]()
    with pytest.raises(RuntimeError, match="b"):
        async with Grelmicro(uses=[memory, Part("a", log), Part("b", log, fails="close")]):
            pass
    assert log == ["+a", "+b", "-b", "-a"]
    assert not is_open(memory)


async def test_it_is_counted_and_can_be_opened_again() -> None:
    memory = MemoryProvider()
    micro = Grelmicro(uses=[memory])
    for _ in range(2):
        async with micro:
            async with micro, Lock("x"):
                pass
            assert is_open(memory)
            async with Lock("x"):
                pass
        assert not is_open(memory)
    await micro.close()


def test_each_loop_opens_it_for_itself() -> None:
    memory = MemoryProvider()
    app = FastAPI(lifespan=Grelmicro(uses=[memory]).lifespan)

    @app.get("/")
    async def handle(guard: Annotated[WriteGuard, Depends(write_guard("x"))]) -> int:
        return guard.fencing_token

    # Two at once, each with a loop in a thread of its own. Memory is one.
    with TestClient(app) as one, TestClient(app) as two:
        assert [client.get("/").json() for client in (one, two, one)] == [1, 2, 3]
    with TestClient(app) as again:
        assert again.get("/").json() == 4


async def test_making_one_needs_no_loop_and_starts_nothing() -> None:
    made: list[Grelmicro] = []
    before = threading.active_count()
    thread = threading.Thread(target=lambda: made.append(Grelmicro(uses=[MemoryProvider()])))
    thread.start()
    thread.join()
    assert threading.active_count() == before
    assert not is_open(made[0].coordination.source)  # type: ignore[union-attr,arg-type]  # it has one


def test_which_store_answers_for_the_app() -> None:
    one, two = MemoryProvider(), MemoryProvider()
    listed = Coordination(two)
    assert Grelmicro(uses=[one, listed]).coordination is listed
    bare = Grelmicro(uses=[one]).coordination
    assert bare is not None
    assert bare.source is one
    assert Grelmicro().coordination is None
    with pytest.raises(SettingsValidationError, match="Coordination"):
        Grelmicro(uses=[one, two])


async def test_the_elections_of_an_app_are_those_of_its_parts_and_of_its_tasks() -> None:
    micro = Grelmicro(uses=[MemoryProvider(), LeaderElection("shop"), Tasks(election=LeaderElection("sweeper"))])
    runtime = await micro.open()
    await micro.close()
    assert sorted(runtime.elections) == ["shop", "sweeper"]


async def test_an_election_of_the_app_resigns_before_guards_are_waited_for() -> None:
    memory, log = MemoryProvider(clock=ManualClock()), list[str]()
    # The clock stands still: whoever waited for the leader's lease would wait for ever.
    async with asyncio.timeout(10), Grelmicro(uses=[LeaderElection("shop"), memory, Part("a", log)]):
        assert log == ["+a"]
        await context.current().elections["shop"].wait_for_leader()  # type: ignore[attr-defined]  # the app's runtime
    assert log == ["+a", "-a"]


async def test_an_app_without_a_store_says_so() -> None:
    app = FastAPI(lifespan=Grelmicro().lifespan)

    @app.get("/", dependencies=[Depends(write_guard("x"))])
    async def handle() -> None: ...

    async with served(app) as client:
        answer = await client.get("/")
        assert answer.status_code == 503
        assert "add a provider" in answer.json()["detail"]


async def test_the_dead_are_buried_on_exit() -> None:
    clock = ManualClock()
    memory = MemoryProvider(clock=clock)
    async with memory:
        async with Grelmicro(uses=[memory]):
            abandoned = await ReadWriteLock("x").write.acquire()
            clock.jump(61)
        state = (await memory.backend.crew().store.peek("rwlock:x")).state
        assert state.writer is None
        assert state.poisoned
        assert abandoned.lost


async def test_the_end_sends_the_waiting_away_before_it_waits_for_those_who_hold() -> None:
    micro = Grelmicro(uses=[MemoryProvider()], drain=3600)
    await micro.open()
    lock, release = Lock("x"), asyncio.Event()

    async def hold() -> None:
        async with lock:
            await release.wait()

    holding = asyncio.create_task(hold())
    waiting = asyncio.create_task(lock.acquire())
    await asyncio.sleep(0)
    closing = asyncio.create_task(micro.close())
    async with asyncio.timeout(10):
        with pytest.raises(DrainingError):
            await waiting
    with pytest.raises(DrainingError):
        await Lock("y").acquire()
    assert not closing.done()
    release.set()
    await holding
    await closing


async def test_the_end_of_an_app_sends_nobody_away_who_uses_its_store_without_it() -> None:
    memory = MemoryProvider()
    outside = Lock("x", backend=memory)
    async with memory, outside:
        waiting = asyncio.create_task(outside.acquire())
        await asyncio.sleep(0)
        async with Grelmicro(uses=[Coordination(memory), memory], drain=0):
            pass
        assert not waiting.done()
        await Lock("y", backend=memory).acquire()
        waiting.cancel()


async def test_what_was_given_up_has_arrived_when_the_app_is_closed() -> None:
    memory = FlakyProvider()
    async with memory:
        micro = Grelmicro(uses=[memory])
        await micro.open()
        guard = await Lock("x").acquire()
        memory.gate.clear()
        releasing = asyncio.create_task(guard.release())
        await asyncio.sleep(0)
        releasing.cancel()
        closing = asyncio.create_task(micro.close())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not closing.done()
        memory.gate.set()
        await closing
        assert (await memory.backend.crew().store.peek("lock:x")).state.writer is None


async def test_a_store_that_is_down_does_not_keep_the_app_from_closing(caplog: pytest.LogCaptureFixture) -> None:
    memory, log = FlakyProvider(), list[str]()

    async with Grelmicro(uses=[memory, Part("a", log)]):
        memory.deaf_to.add(Vacate)
    assert log == ["+a", "-a"]
    assert not is_open(memory)
    assert "not tidied up" in caplog.text


async def test_the_state_of_requests_has_the_app_and_what_others_put_there() -> None:
    micro = Grelmicro(uses=[MemoryProvider()])

    @asynccontextmanager
    async def own(app: object) -> AsyncIterator[dict[str, str]]:
        yield {"router": "here"}

    app, router = FastAPI(lifespan=micro.lifespan), APIRouter(lifespan=own)

    @router.get("/")
    async def handle(request: Request) -> list[str]:
        assert request.state.grelmicro.coordination is micro.coordination
        return [request.state.router]

    app.include_router(router)
    async with served(app) as client:
        assert (await client.get("/")).json() == ["here"]


async def test_install_runs_the_lifespan_of_the_user_inside_ours() -> None:
    log: list[str] = []

    @asynccontextmanager
    async def own(app: object) -> AsyncIterator[dict[str, str]]:
        async with Lock("migrate"):
            log.append("up")
        yield {"mine": "kept"}
        async with Lock("migrate"):
            log.append("down")

    app, micro = FastAPI(lifespan=own), Grelmicro(uses=[MemoryProvider()])
    micro.install(app)

    @app.get("/")
    async def handle(request: Request, guard: Annotated[WriteGuard, Depends(write_guard("x"))]) -> str:
        assert request.state.grelmicro.coordination is micro.coordination
        return str(request.state.mine)

    async with served(app) as client:
        assert (await client.get("/")).json() == "kept"
    assert log == ["up", "down"]


async def test_install_twice_and_beside_lifespan_is_install_once() -> None:
    log: list[str] = []
    micro = Grelmicro(uses=[MemoryProvider(), Part("a", log)])
    app = FastAPI(lifespan=micro.lifespan)
    micro.install(app)
    middleware, lifespan = list(app.user_middleware), app.router.lifespan_context
    micro.install(app)
    assert (app.user_middleware, app.router.lifespan_context) == (middleware, lifespan)
    async with served(app):
        pass
    assert log == ["+a", "-a"]
    with pytest.raises(ValueError, match="another Grelmicro"):
        Grelmicro().install(app)


async def test_install_after_the_first_request_is_refused_rather_than_ignored() -> None:
    app = FastAPI(lifespan=Grelmicro(uses=[MemoryProvider()]).lifespan)
    async with served(app) as client:
        await client.get("/")
    with pytest.raises(RuntimeError, match="served already"):
        Grelmicro().install(app)


async def test_install_keeps_the_handlers_that_the_user_has() -> None:
    app = FastAPI()

    async def mine(request: Request, error: Exception) -> Any: ...

    app.add_exception_handler(SettingsValidationError, mine)
    Grelmicro().install(app)
    assert app.exception_handlers[SettingsValidationError] is mine


async def test_plain_starlette_can_be_installed_in() -> None:
    app = Starlette()
    micro = Grelmicro(uses=[MemoryProvider()])
    micro.install(app)
    async with served(app):
        assert context.current().coordination is micro.coordination
