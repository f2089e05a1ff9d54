"""What a lock leaves for the garbage collector: its pauses would be those of the whole service."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grelmicro_fastapi.coordination.readwritelock import ReadWriteLock
from grelmicro_fastapi.providers.base import Provider
from grelmicro_fastapi.providers.memory import MemoryProvider
from grelmicro_fastapi.providers.postgres import PostgresProvider
from grelmicro_fastapi.providers.redis import RedisProvider
from grelmicro_fastapi.providers.sqlite import SqliteProvider

pytestmark = pytest.mark.anyio

PAIRS = 200

STORES: dict[str, Callable[[pytest.FixtureRequest, Path], Provider]] = {
    "memory": lambda request, folder: MemoryProvider(),
    "sqlite": lambda request, folder: SqliteProvider(folder / "locks.db"),
    "redis": lambda request, folder: RedisProvider(request.getfixturevalue("valkey_server").url),
    "postgres": lambda request, folder: PostgresProvider(request.getfixturevalue("postgres").url),
}


@pytest.fixture(params=STORES)
def provider(request: pytest.FixtureRequest, tmp_path: Path) -> Provider:
    return STORES[request.param](request, tmp_path)


@pytest.mark.parametrize("mode", ["read", "write"])
async def test_holds_that_come_and_go_leave_no_cycles(provider: Provider, mode: str) -> None:
    async with provider:
        view: Any = getattr(ReadWriteLock("garbage", backend=provider), mode)

        async def pairs() -> None:
            for _ in range(PAIRS):
                async with view:
                    pass

        await pairs()
        gc.collect()
        gc.disable()
        try:
            await pairs()
            # A few of other people's, now and then, but none for each hold.
            assert gc.collect() < PAIRS
        finally:
            gc.enable()
