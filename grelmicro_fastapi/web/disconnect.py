"""A client that has left need not wait for a lock any more.

Best effort: `wait=` is the bound that always holds. To learn of it we must read what the client sends, so we look
only where that takes nothing away from the handler; behind `BaseHTTPMiddleware` nobody is told at all.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from starlette.requests import ClientDisconnect, HTTPConnection, Request

from grelmicro_fastapi.errors import LockTimeoutError

T = TypeVar("T")

PATIENCE: Final = 0.2
"""Seconds to wait before we begin to look, so that a request that gets its lock at once pays nothing for it."""


async def while_connected(conn: HTTPConnection, acquire: Callable[[], Awaitable[T]]) -> T:
    """Await `acquire()`, and give up with `LockTimeoutError` if the client leaves."""
    if not isinstance(conn, Request) or not _may_read(conn):
        return await acquire()
    request = conn
    loop = asyncio.get_running_loop()
    watching: list[asyncio.Task[None]] = []
    bound = asyncio.timeout(None)
    try:
        async with bound:
            timer = loop.call_later(PATIENCE, lambda: watching.append(loop.create_task(_watch(request, bound))))
            try:
                return await acquire()
            finally:
                timer.cancel()
                for task in watching:
                    task.cancel()
                    await asyncio.wait([task])
    except TimeoutError:
        if bound.expired():
            raise LockTimeoutError("the client left while it waited for the lock") from None
        raise


async def _watch(request: Request, bound: asyncio.Timeout) -> None:
    try:
        if _has_no_body(request):
            # The empty body comes first, once. Read this way, the handler finds it too.
            await request.body()
        while (await request.receive())["type"] != "http.disconnect":
            pass
    except ClientDisconnect:
        pass
    bound.reschedule(asyncio.get_running_loop().time())


def _may_read(request: Request) -> bool:
    # FastAPI has read the body before any dependency runs where the route declares one.
    return _has_no_body(request) or getattr(request.scope.get("route"), "body_field", None) is not None


def _has_no_body(request: Request) -> bool:
    headers = request.headers
    return headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
