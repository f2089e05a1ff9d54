"""What `grelmicro_fastapi.testing` gives to the tests of others."""

import asyncio
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI

from grelmicro_fastapi.app.grelmicro import Grelmicro
from grelmicro_fastapi.coordination.guards import LockHandle, ReadGuard, WriteGuard
from grelmicro_fastapi.coordination.lock import Lock
from grelmicro_fastapi.coordination.readwritelock import ReadWriteLock
from grelmicro_fastapi.providers.sqlite import SqliteProvider
from grelmicro_fastapi.testing import ManualClock, async_client, fake_guard, memory_app, override, sync_client
from grelmicro_fastapi.testing.fixtures import manual_clock as manual_clock
from grelmicro_fastapi.testing.fixtures import memory_provider as memory_provider
from grelmicro_fastapi.web.dependencies import lock_guard, read_guard, write_guard
from grelmicro_fastapi.web.methods import method_guard

pytestmark = pytest.mark.anyio


def shop(install: bool = True) -> FastAPI:
    # A store that cannot be there: whoever connects to it fails.
    micro = Grelmicro(uses=[SqliteProvider("/nowhere/at/all/locks.sqlite")])
    app = FastAPI(lifespan=micro.lifespan)
    if install:
        micro.install(app)

    @app.get("/catalog")
    async def show(guard: Annotated[ReadGuard, Depends(read_guard("catalog"))]) -> list[Any]:
        return [guard.name, guard.generation, guard.poisoned]

    @app.put("/catalog")
    async def replace(guard: Annotated[WriteGuard, Depends(write_guard("catalog", wait=0.1))]) -> list[Any]:
        guard.check()
        return [guard.name, guard.fencing_token, guard.poisoned]

    @app.post("/sweep")
    async def sweep(guard: Annotated[LockHandle, Depends(lock_guard("sweep"))]) -> list[Any]:
        async with Lock("other") as other:
            return [guard.fencing_token, other.fencing_token]

    return app


async def test_a_fake_guard_is_real_but_for_its_store() -> None:
    app = shop()
    app.dependency_overrides[read_guard("catalog")] = fake_guard(ReadGuard, token=7, poisoned=True)
    app.dependency_overrides[write_guard("catalog", wait=0.1)] = fake_guard(WriteGuard, name="mine", token=9)
    app.dependency_overrides[lock_guard("sweep")] = fake_guard(LockHandle, token=3)
    with memory_app(app):
        async with async_client(app) as client:
            assert (await client.get("/catalog")).json() == ["fake", 7, True]
            assert (await client.put("/catalog")).json() == ["mine", 9, False]
            assert (await client.post("/sweep")).json() == [3, 1]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (ReadGuard, {"token": -1}),
        (WriteGuard, {"token": 0}),
        (ReadGuard, {"token": 0, "poisoned": True}),
        (WriteGuard, {"token": 1, "poisoned": True}),
        (LockHandle, {"token": 5, "poisoned": True}),
    ],
)
def test_a_fake_that_cannot_exist_is_refused(kind: Any, options: Any) -> None:
    with pytest.raises(ValueError, match="token"):
        fake_guard(kind, **options)


async def test_every_lowest_fake_exists() -> None:
    for kind, token, poisoned in [(ReadGuard, 0, False), (ReadGuard, 1, True), (WriteGuard, 2, True)]:
        async for guard in fake_guard(kind, token=token, poisoned=poisoned)():
            assert guard.poisoned is poisoned


async def test_a_lost_fake_shows_what_a_handler_does_when_it_is_lost() -> None:
    app = shop()
    override(app, "catalog", fake_guard(WriteGuard, lost=True))
    with memory_app(app):
        async with async_client(app) as client:
            assert (await client.put("/catalog")).status_code == 503


async def test_override_finds_every_guard_of_a_name() -> None:
    app = shop()
    assert override(app, "catalog", lambda: None) == 2
    assert set(app.dependency_overrides) == {read_guard("catalog"), write_guard("catalog", wait=0.1)}
    with pytest.raises(LookupError, match="'catalogue'"):
        override(app, "catalogue", lambda: None)


async def test_override_finds_a_guard_by_method_too() -> None:
    app = shop()
    guard = method_guard("stock")

    @app.get("/stock", dependencies=[Depends(guard)])
    @app.put("/stock", dependencies=[Depends(guard)])
    async def handle() -> None: ...

    assert override(app, "stock", lambda: None) == 1
    with memory_app(app):
        async with async_client(app) as client, ReadWriteLock("stock").write:
            assert (await client.put("/stock")).status_code == 200


async def test_a_test_may_hold_what_a_request_asks_for() -> None:
    app = shop()
    with memory_app(app):
        async with async_client(app) as client:
            async with ReadWriteLock("catalog").write as writing:
                put = asyncio.create_task(client.put("/catalog"))
                assert writing.fencing_token == 1
                await asyncio.sleep(0)
                assert not put.done()
            assert (await put).json() == ["catalog", 2, False]
            async with ReadWriteLock("catalog").write:
                assert (await client.put("/catalog")).status_code == 409


@pytest.mark.parametrize("install", [True, False])
async def test_an_app_can_keep_its_states_in_memory(install: bool) -> None:
    app = shop(install)
    clock = ManualClock()
    with memory_app(app, clock=clock) as memory:
        async with async_client(app) as client:
            assert (await client.put("/catalog")).json() == ["catalog", 1, False]
            assert (await client.post("/sweep")).json() == [1, 1]
            assert memory.backend.crew().clock is clock
    with pytest.raises(LookupError, match="install"), memory_app(FastAPI()):
        pass


def test_tests_without_async_have_a_client_too() -> None:
    app = shop()
    with memory_app(app), sync_client(app) as client:
        assert client.put("/catalog").json() == ["catalog", 1, False]


async def test_the_fixtures_are_a_clock_and_a_store_on_it(manual_clock: ManualClock, memory_provider: Any) -> None:
    async with memory_provider:
        handle = await Lock("x", backend=memory_provider, lease_duration=10).acquire()
        await manual_clock.advance(11)
        assert handle.lost
