"""The servers of the tests, for measuring: the same in all cases of one run."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.servers.postgres import running_postgres
from tests.servers.redis import Server, default_server, running

__all__ = ["Server", "postgres", "redis"]


@contextmanager
def redis() -> Iterator[Server]:
    """A Valkey or Redis server of one's own."""
    with running(default_server()) as server:
        yield server


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server of one's own. It waits for its disk, as in production."""
    with running_postgres(fsync=True) as server:
        yield server.url
