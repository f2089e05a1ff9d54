"""The providers that speak to a server, for tests that put a bad network in between.

A provider that does adds itself to `NETWORKED`: the fixture of its server, and how to connect to a port with timeouts
of so many seconds.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from grelmicro_fastapi.coordination.guards import Guard
from grelmicro_fastapi.coordination.readwritelock import ReadWriteLock
from grelmicro_fastapi.coordination.store import Snapshot
from grelmicro_fastapi.errors import BackendError, CoordinationError
from grelmicro_fastapi.providers.base import Provider
from grelmicro_fastapi.providers.postgres import PostgresProvider
from grelmicro_fastapi.providers.redis import RedisProvider
from grelmicro_fastapi.providers.valkey import ValkeyProvider

T = TypeVar("T")

SHORT = 0.3
"""Seconds that one operation may take over a bad network."""
PATIENCE = 10
"""Seconds within which everything is over and done, however busy the machine is."""


@dataclass(frozen=True)
class Networked:
    name: str
    server: str
    port: Callable[[Any], int]
    provider: Callable[[int, float], Provider]

    def connect(self, port: int) -> Provider:
        """One that soon gives up: for a bad network, which is what it has to notice."""
        return self.provider(port, SHORT)

    def straight(self, server: Any) -> Provider:
        """One without a bad network in between. It looks on, so a machine that is busy must not make it fail."""
        return self.provider(self.port(server), PATIENCE)


NETWORKED = [
    Networked(
        "redis",
        "valkey_server",
        lambda server: int(server.port),
        lambda port, bound: RedisProvider(f"redis://127.0.0.1:{port}", connect_timeout=bound, operation_timeout=bound),
    ),
    Networked(
        "valkey",
        "valkey_server",
        lambda server: int(server.port),
        lambda port, bound: ValkeyProvider(
            f"valkey://127.0.0.1:{port}", connect_timeout=bound, operation_timeout=bound
        ),
    ),
    Networked(
        "postgres",
        "postgres",
        lambda server: int(server.port),
        lambda port, bound: PostgresProvider(f"postgresql://postgres@127.0.0.1:{port}/postgres", timeout=bound),
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


async def persistent(acquire: Callable[[], Awaitable[T]]) -> T:
    """Acquire, and ask again while the store gives no verdict."""
    while True:
        try:
            return await acquire()
        except BackendError:
            await asyncio.sleep(0.01)  # the network heals on its own clock


async def prepared(acquire: Callable[[], Awaitable[T]], provider: Provider) -> T:
    """A guard for the scene to begin with, and nothing is under way any more that a fault could meet."""
    guard = await persistent(acquire)
    await provider.backend.crew().courier.rest(PATIENCE)
    return guard


async def settled(guard: Guard) -> None:
    """A release may be asked for again while its outcome is unknown."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await guard.release()
            except BackendError:
                continue
            except CoordinationError:
                return
            return
