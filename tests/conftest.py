"""What every test gets: asyncio, and a gate that lets nothing stay behind."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.providers.networked import networked as networked
from tests.providers.networked import networked_server as networked_server
from tests.providers.scene import scene as scene
from tests.servers.kubernetes import kubernetes as kubernetes
from tests.servers.postgres import pgbouncer_url as pgbouncer_url
from tests.servers.postgres import postgres as postgres
from tests.servers.redis import cluster as cluster
from tests.servers.redis import redis_proper_server as redis_proper_server
from tests.servers.redis import redis_tls as redis_tls
from tests.servers.redis import sentinel as sentinel
from tests.servers.redis import valkey_server as valkey_server
from tests.stores import site as site
from tests.stores import site_needs as site_needs

# Threads of pools that belong to the loop or to anyio: they are reused and end with their loop.
_POOLS = ("asyncio_", "AnyIO worker thread")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _leak_gate(request: pytest.FixtureRequest) -> Iterator[None]:
    if "anyio_backend" in request.fixturenames:
        request.getfixturevalue("_task_gate")
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 2
    while (left := _new_threads(before)) and time.monotonic() < deadline:
        left[0].join(0.05)
    assert not left, f"threads left behind: {left}"


@pytest.fixture
async def _task_gate() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    for _ in range(20):
        left = {task for task in asyncio.all_tasks() - before if not _is_the_runners(task)}
        if not left:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"tasks left behind: {left}")


def _is_the_runners(task: asyncio.Task[object]) -> bool:
    return getattr(task.get_coro(), "__qualname__", "").startswith("TestRunner.")


def _new_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    return [
        thread
        for thread in threading.enumerate()
        if thread not in before and not thread.daemon and not thread.name.startswith(_POOLS)
    ]
