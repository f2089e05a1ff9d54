"""What whoever runs the service is told: alive, ready, and how it is doing."""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI, HTTPException

from grelmicro_fastapi.app.grelmicro import Grelmicro
from grelmicro_fastapi.coordination.coordination import Coordination
from grelmicro_fastapi.coordination.leaderelection import LeaderElection
from grelmicro_fastapi.coordination.store import Snapshot
from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers.memory import MemoryProvider
from grelmicro_fastapi.tasks.tasks import Tasks
from grelmicro_fastapi.testing.clock import ManualClock
from tests.web.serving import served

pytestmark = pytest.mark.anyio


class Line(MemoryProvider):
    """A store at the end of a line, which can be cut, or hang."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.cut = False
        self.hangs = False
        self.asked = 0

    def _store(self) -> Any:
        line, store = self, super()._store()

        class Store:
            def __getattr__(self, name: str) -> Any:
                if name == "at_once":
                    raise AttributeError(name)
                return getattr(store, name)

            async def apply(self, asks: Sequence[Any]) -> Any:
                return await store.apply(asks)

            async def peek(self, key: str) -> Snapshot:
                line.asked += 1
                if line.hangs:
                    await asyncio.get_running_loop().create_future()
                if line.cut:
                    raise BackendError("no route to redis://user:secret@host")
                return await store.peek(key)

        return Store()


class Site:
    def __init__(self, *parts: Any) -> None:
        self.clock = ManualClock()
        self.line = Line(clock=self.clock)
        self.micro = Grelmicro(uses=[self.line, *parts])
        self.app = FastAPI(lifespan=self.micro.lifespan)
        self.app.include_router(self.micro.health_router())

    async def stands_still(self, seconds: float = 1.0) -> None:
        """Time in which what a store said grows old."""
        await self.clock.advance(seconds)


async def ready(client: httpx.AsyncClient) -> tuple[int, str]:
    answer = await client.get("/readyz")
    return answer.status_code, answer.json()["status"]


async def test_a_process_is_ready_while_its_store_answers() -> None:
    site = Site()
    async with served(site.app) as client:
        assert await ready(client) == (200, "ready")
        site.line.cut = True
        await site.stands_still()
        assert await ready(client) == (503, "unreachable")
        site.line.cut = False
        await site.stands_still()
        assert await ready(client) == (200, "ready")


async def test_a_store_that_is_down_is_no_reason_to_restart_anybody() -> None:
    site = Site()
    site.line.cut = True
    async with served(site.app) as client:
        answer = await client.get("/livez")
        assert (answer.status_code, answer.json()) == (200, {"status": "alive"})
        assert answer.headers["cache-control"] == "no-store"
        assert site.line.asked == 0


async def test_however_many_probes_come_the_store_is_asked_once_a_second() -> None:
    site = Site()
    async with served(site.app) as client:
        await asyncio.gather(*[client.get("/readyz") for _ in range(20)])
        await site.stands_still(0.9)
        await client.get("/healthz")
        assert site.line.asked == 1
        await site.stands_still(0.1)
        await client.get("/readyz")
        assert site.line.asked == 2


async def test_a_store_that_hangs_is_given_up_after_a_second() -> None:
    site = Site()
    site.line.hangs = True
    async with served(site.app) as client:
        probe = asyncio.create_task(client.get("/readyz"))
        await site.clock.advance(0.9)
        assert not probe.done()
        await site.clock.advance(0.1)
        assert (await probe).status_code == 503
        site.line.hangs = False
        await site.clock.advance(10)


async def test_a_process_that_was_told_to_stop_is_not_ready_any_more() -> None:
    site = Site()
    runtime = await site.micro.open()
    async with served(site.app) as client:
        runtime.draining = True
        assert await ready(client) == (503, "draining")
        assert (await client.get("/livez")).status_code == 200
    await site.micro.close()


async def test_an_app_that_is_not_open_yet_is_starting() -> None:
    app = FastAPI()
    app.include_router(Grelmicro(uses=[MemoryProvider()]).health_router())
    async with served(app) as client:
        assert await ready(client) == (503, "starting")
        assert (await client.get("/healthz")).status_code == 503


async def test_followers_are_ready_as_leaders_are() -> None:
    clock = ManualClock()
    memory = MemoryProvider(clock=clock)
    async with memory:
        first = LeaderElection("shop", backend=memory)
        async with first:
            await first.wait_for_leader()
            micro = Grelmicro(uses=[memory, LeaderElection("shop")], drain=0)
            app = FastAPI(lifespan=micro.lifespan)
            app.include_router(micro.health_router())
            async with served(app) as client:
                await clock.settle()
                assert await ready(client) == (200, "ready")
                details = (await client.get("/healthz")).json()
                assert details["elections"] == [{"name": "shop", "leading": False}]


async def test_every_store_must_answer() -> None:
    locks, leaders = Line(), Line()
    micro = Grelmicro(uses=[Coordination(locks, election=leaders)])
    app = FastAPI(lifespan=micro.lifespan)
    app.include_router(micro.health_router())
    leaders.cut = True
    async with served(app) as client:
        assert await ready(client) == (503, "unreachable")
        stores = (await client.get("/healthz")).json()["stores"]
        assert [store["alive"] for store in stores] == [True, False]


async def test_details_tell_of_stores_and_tasks_and_no_secret() -> None:
    tasks = Tasks(candidate=False)

    @tasks.every(10)
    async def sync() -> None:
        raise RuntimeError("could not log in with password hunter2")

    site = Site(tasks)
    async with served(site.app) as client:
        await site.clock.advance(11)
        answer = await client.get("/healthz")
        assert answer.status_code == 200
        details = answer.json()
        [store] = details["stores"]
        assert (store["name"], store["reach"], store["alive"]) == ("memory", "process", True)
        assert store["latency_ms"] >= 0
        [task] = details["tasks"]
        assert (task["name"], task["last_error"]) == ("sync", "RuntimeError")
        assert task["failures"] >= 1
        site.line.cut = True
        await site.stands_still()
        unreachable = await client.get("/healthz")
        assert unreachable.status_code == 503
        for hidden in ("hunter2", "secret"):
            assert hidden not in answer.text + unreachable.text


async def test_the_details_can_be_guarded_and_the_probes_stay_open() -> None:
    def admin() -> None:
        raise HTTPException(401)

    micro = Grelmicro(uses=[MemoryProvider()])
    app = FastAPI(lifespan=micro.lifespan)
    app.include_router(micro.health_router(dependencies=[Depends(admin)]), prefix="/ops")
    async with served(app) as client:
        codes = [(await client.get(f"/ops/{page}")).status_code for page in ("livez", "readyz", "healthz")]
        assert codes == [200, 200, 401]
        assert (await client.head("/ops/readyz")).status_code == 200
        assert app.openapi()["paths"] == {}
