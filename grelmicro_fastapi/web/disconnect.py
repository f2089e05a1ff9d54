"""A client that has left need not wait for a lock any more.

Best effort: `wait=` is the bound that always holds. To learn of it we must read what the client sends, so we look
only where that takes nothing away from the handler; behind `BaseHTTPMiddleware` nobody is told at all.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from starlette.requests import ClientDisconnect, HTTPConnection, Request

from grelmicro_fastapi.coordination.guards import Guard
from grelmicro_fastapi.errors import LockTimeoutError

G = TypeVar("G", bound=Guard)

PATIENCE: Final = 0.2
"""Seconds to wait before we begin to look, so that a request that gets its lock at once pays nothing for it."""


async def while_connected(conn: HTTPConnection, acquire: Callable[[], Awaitable[G]]) -> G:
    """Await `acquire()`, and give up with `LockTimeoutError` if the client leaves."""
    watch = _Watch(conn)
    timer = asyncio.get_running_loop().call_later(PATIENCE, watch.begin)
    try:
        guard = await acquire()
    except asyncio.CancelledError:
        if not watch.ended_it():
            raise
        raise LockTimeoutError("the client left while it waited for the lock") from None
    finally:
        timer.cancel()
        if watch.looking:
            watch.looking.cancel()
    if watch.looking:
        try:
            # Before the handler reads, nobody else may.
            await asyncio.wait([watch.looking])
        except asyncio.CancelledError as error:
            await guard.leave(error)
            raise
    return guard


class _Watch:
    """Looks whether the client is there, once it was made to wait, and ends the wait if it is gone."""

    __slots__ = ("_calm", "conn", "gone", "looking", "waiter")

    def __init__(self, conn: HTTPConnection) -> None:
        self.conn = conn
        self.waiter = asyncio.current_task()
        # How often it had been cancelled before, by somebody whose cancellation it did not heed.
        self._calm = self.waiter.cancelling() if self.waiter else 0
        self.looking: asyncio.Task[None] | None = None
        self.gone = False

    def ended_it(self) -> bool:
        """Was the wait cancelled because the client left, and for nothing else?"""
        return self.gone and self.waiter is not None and self.waiter.uncancel() <= self._calm

    def begin(self) -> None:
        if isinstance(self.conn, Request) and _may_read(self.conn):
            self.looking = asyncio.get_running_loop().create_task(self._look(self.conn))

    async def _look(self, request: Request) -> None:
        try:
            if _has_no_body(request):
                # The empty body comes first, once. Read this way, the handler finds it too.
                await request.body()
            while (await request.receive())["type"] != "http.disconnect":
                pass
        except ClientDisconnect:
            pass
        self.gone = True
        if self.waiter:
            self.waiter.cancel()


def _may_read(request: Request) -> bool:
    # FastAPI has read the body before any dependency runs where the route declares one.
    return _has_no_body(request) or getattr(request.scope.get("route"), "body_field", None) is not None


def _has_no_body(request: Request) -> bool:
    headers = request.headers
    return headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
