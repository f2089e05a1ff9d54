"""Connections to PostgreSQL: held ones of our own, or those of a pool that somebody else owns."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import asyncpg
from asyncpg import Connection, Record
from asyncpg.pool import Pool, PoolConnectionProxy

from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers.postgres_errors import ERRORS, harmless, unreachable

T = TypeVar("T")
Link: TypeAlias = "Connection[Record] | PoolConnectionProxy[Record]"

_log = logging.getLogger("grelmicro_fastapi.providers")


class Connections(Protocol):
    """Where a connection comes from and goes to. It is used by one task at a time."""

    async def take(self) -> Link:
        """Return a connection. Raises `BackendError` if there is none to be had."""
        ...

    def give(self, link: Link, error: BaseException | None = None) -> None:
        """Take it back, or drop it if it may be dirty: after a cancellation, a silence, a failover."""
        ...

    def listening(self) -> contextlib.AbstractAsyncContextManager[Link]:
        """Lend a connection to listen on, for long. Raises `BackendError` if there can never be one."""
        ...

    def uncached(self) -> bool:
        """Prepare no statements from now on: a pooler loses them. False if that changes nothing."""
        ...

    async def close(self) -> None:
        """Give all of them back."""
        ...


class Errands:
    """Tasks that a cancelled caller leaves alone. The driver leaks when it is cancelled while it connects."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def send(self, errand: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start, and do not wait."""
        task = asyncio.get_running_loop().create_task(errand)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def fetch(self, errand: Coroutine[Any, Any, T], unwanted: Callable[[T], object]) -> T:
        """Wait for what it brings. A caller who is cancelled is gone when it comes: then it is `unwanted`."""
        task = self.send(errand)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(lambda done: done.cancelled() or done.exception() or unwanted(done.result()))
            raise

    async def close(self) -> None:
        """Let all of them end, for a second."""
        if self._tasks:
            tasks = set(self._tasks)
            await asyncio.wait(tasks, timeout=1)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class Held:
    """Connections of our own, opened when needed and then held: a pool would reset them on a round trip of its own."""

    def __init__(self, url: str, listen_url: str | None, timeout: float, cached: int) -> None:
        self._url = url
        self._listen_url = listen_url or url
        self._timeout = timeout
        self._cached = cached
        self._uncached = False
        self._idle: list[Connection[Record]] = []
        self._errands = Errands()

    async def take(self) -> Link:
        """Return the one that was used last, or a new one."""
        while self._idle:
            link = self._idle.pop()
            if not link.is_closed():
                return link
        return await self._errands.fetch(self._connect(self._url), self.give)

    def give(self, link: Link, error: BaseException | None = None) -> None:
        """Hold it."""
        if error is not None and not harmless(error):
            link.terminate()
            if not isinstance(error, asyncio.CancelledError | TimeoutError):
                # After a failover the others lead to the wrong server too.
                while self._idle:
                    self._idle.pop().terminate()
        elif not link.is_closed() and isinstance(link, Connection):
            self._idle.append(link)

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[Link]:
        """Lend one that only listens."""
        link = await self._errands.fetch(self._connect(self._listen_url), Connection.terminate)
        try:
            yield link
        finally:
            with contextlib.suppress(*ERRORS):
                await link.close(timeout=1)

    async def close(self) -> None:
        """Close what is idle."""
        await self._errands.close()
        idle, self._idle = self._idle, []
        await asyncio.gather(*(link.close(timeout=1) for link in idle), return_exceptions=True)

    def uncached(self) -> bool:
        """Prepare no statements from now on."""
        if self._cached:
            _log.warning("a pooler loses prepared statements: set statement_cache_size=0 on the PostgreSQL provider")
            self._cached = 0
            self._uncached = True
            while self._idle:
                self._idle.pop().terminate()
        # Who comes later had a connection from before.
        return self._uncached

    async def _connect(self, url: str) -> "Connection[Record]":
        try:
            return await asyncpg.connect(url, timeout=self._timeout, statement_cache_size=self._cached)
        except ERRORS as error:
            raise unreachable(error) from None


class Borrowed:
    """Connections of a pool that belongs to somebody else. Each goes back after one call, so that nobody starves."""

    def __init__(self, pool: "Pool[Record]", listen_url: str | None, timeout: float) -> None:
        self._pool = pool
        self._listen_url = listen_url
        self._timeout = timeout
        self._errands = Errands()

    async def take(self) -> Link:
        """Return one of the pool's."""
        return await self._errands.fetch(self._acquire(), self.give)

    def give(self, link: Link, error: BaseException | None = None) -> None:
        """Give it back to the pool, which resets it; nobody has to wait for that."""
        if error is not None and not harmless(error):
            link.terminate()
        self._errands.send(self._release(link))

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[Link]:
        """Lend one that stays out of the pool."""
        if self._listen_url:
            async with Held(self._listen_url, None, self._timeout, 0).listening() as link:
                yield link
            return
        if self._pool.get_max_size() < 2:
            raise BackendError("listening would take the pool's only connection: pass listen_url=, or a larger pool")
        link = await self.take()
        try:
            yield link
        finally:
            await self._release(link)

    def uncached(self) -> bool:
        """Whoever made the pool decides that."""
        return False

    async def close(self) -> None:
        """Wait for those on their way back."""
        await self._errands.close()

    async def _acquire(self) -> Link:
        try:
            return await self._pool.acquire(timeout=self._timeout)
        except ERRORS as error:
            raise unreachable(error) from None

    async def _release(self, link: Link) -> None:
        with contextlib.suppress(*ERRORS):
            await self._pool.release(cast("PoolConnectionProxy[Record]", link), timeout=self._timeout)
