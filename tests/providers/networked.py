"""The providers that speak to a server, for tests that put a bad network in between.

A provider that does adds itself to `NETWORKED`: the fixture of its server, and how to connect to a port with short
timeouts.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from grelmicro_fastapi.coordination.guards import Guard
from grelmicro_fastapi.coordination.readwritelock import ReadWriteLock
from grelmicro_fastapi.coordination.store import Snapshot
from grelmicro_fastapi.errors import BackendError, CoordinationError
from grelmicro_fastapi.providers.base import Provider
from grelmicro_fastapi.providers.postgres import PostgresProvider
from grelmicro_fastapi.providers.redis import RedisProvider
from grelmicro_fastapi.providers.valkey import ValkeyProvider

SHORT = 0.3
"""Seconds that one operation may take."""


@dataclass(frozen=True)
class Networked:
    name: str
    server: str
    port: Callable[[Any], int]
    connect: Callable[[Any, int], Provider]


NETWORKED = [
    Networked(
        "redis",
        "valkey_server",
        lambda server: int(server.port),
        lambda _, port: RedisProvider(f"redis://127.0.0.1:{port}", connect_timeout=SHORT, operation_timeout=SHORT),
    ),
    Networked(
        "valkey",
        "valkey_server",
        lambda server: int(server.port),
        lambda _, port: ValkeyProvider(f"valkey://127.0.0.1:{port}", connect_timeout=SHORT, operation_timeout=SHORT),
    ),
    Networked(
        "postgres",
        "postgres",
        lambda server: int(server.port),
        lambda _, port: PostgresProvider(f"postgresql://postgres@127.0.0.1:{port}/postgres", timeout=SHORT),
    ),
]


@pytest.fixture(params=NETWORKED, ids=lambda row: row.name)
def networked(request: pytest.FixtureRequest) -> Networked:
    row: Networked = request.param
    return row


@pytest.fixture
def networked_server(networked: Networked, request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(networked.server)


def mine(name: str, provider: Provider) -> ReadWriteLock:
    """A lock whose lease outlives every test."""
    return ReadWriteLock(name, backend=provider, lease_duration=20)


async def state_of(provider: Provider, name: str) -> Snapshot:
    return await provider.backend.crew().store.peek(f"rwlock:{name}")


async def persistent(acquire: Callable[[], Awaitable[Any]]) -> Any:
    """Acquire, and ask again while the store gives no verdict."""
    while True:
        try:
            return await acquire()
        except BackendError:
            await asyncio.sleep(0.01)  # the network heals on its own clock


async def settled(guard: Guard) -> None:
    """A release may be asked for again while its outcome is unknown."""
    async with asyncio.timeout(10):
        while True:
            try:
                await guard.release()
            except BackendError:
                continue
            except CoordinationError:
                return
            return
