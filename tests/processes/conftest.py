"""Real processes: `uvicorn --workers 4`, on every store that several processes can share."""

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import asyncpg
import pytest

from example_app.demo.fleet import Fleet
from tests.servers.kubernetes import clear

Launch = Callable[..., Fleet]
Ask = pytest.FixtureRequest


def _sqlite(request: Ask) -> str:
    folder = request.getfixturevalue("tmp_path_factory").mktemp("locks")
    return f"sqlite:///{folder}/locks.sqlite"


def _valkey(request: Ask) -> str:
    server = request.getfixturevalue("valkey_server")
    with server.client() as client:
        client.flushall()
    return str(server.url)


def _postgres(request: Ask) -> str:
    server = request.getfixturevalue("postgres")
    name = f"shop_{secrets.token_hex(4)}"

    async def make() -> None:
        connection: asyncpg.Connection = await asyncpg.connect(server.url)
        await connection.execute(f"CREATE DATABASE {name}")
        await connection.close()

    asyncio.run(make())
    return f"{server.url.rpartition('/')[0]}/{name}"


def _kubernetes(request: Ask) -> str:
    cluster = request.getfixturevalue("kubernetes")
    asyncio.run(clear(cluster))
    return str(cluster.url)


STORES: dict[str, Callable[[Ask], str]] = {
    "sqlite": _sqlite,
    "valkey": _valkey,
    "postgres": _postgres,
    "kubernetes": _kubernetes,
}
"""How to get the URL of an empty place in each store."""


@pytest.fixture(scope="module", params=STORES)
def url(request: Ask) -> str:
    """Where the locks are kept: empty, and for one module only."""
    return STORES[request.param](request)


@pytest.fixture(scope="module")
def launch(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """Start four workers with this lease in seconds, and this pause in milliseconds."""
    with ExitStack() as stack:

        def launch(*, lease: float, pause: float) -> Fleet:
            folder: Path = tmp_path_factory.mktemp("shop")
            environment = {
                "COORDINATION_URL": url,
                "EXAMPLE_DATABASE": str(folder / "shop.sqlite"),
                "EXAMPLE_LEASE": str(lease),
                "EXAMPLE_PAUSE": str(pause),
            }
            return stack.enter_context(Fleet("tests.processes.service:app", folder, environment))

        yield launch
