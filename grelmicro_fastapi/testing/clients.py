"""A client for tests that are `async`: with the app's lifespan and its state."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

try:
    import httpx
except ImportError as missing:
    raise ImportError("clients for tests need httpx: pip install httpx") from missing


@asynccontextmanager
async def async_client(app: Starlette, **options: Any) -> AsyncGenerator[httpx.AsyncClient, None]:
    """A client of the app while its lifespan runs; requests carry its state. `options` are those of `AsyncClient`.

    Each request is a task of its own, as on a server: a test may hold a lock and see what a request is told.
    """
    async with app.router.lifespan_context(app) as yielded:
        state = dict(cast("Mapping[str, Any]", yielded or {}))

        async def with_state(scope: Scope, receive: Receive, send: Send) -> None:
            await asyncio.create_task(app({**scope, "state": dict(state)}, receive, send))

        transport = httpx.ASGITransport(app=cast("Any", with_state))
        chosen: dict[str, Any] = {"base_url": "http://test", "transport": transport, **options}
        async with httpx.AsyncClient(**chosen) as client:
            yield client
