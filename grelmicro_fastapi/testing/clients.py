"""A client for tests that are `async`: with the app's lifespan and its state."""

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

    The requests run in the task that sends them: what that task holds is theirs too, so hold locks in another one.
    """
    async with app.router.lifespan_context(app) as yielded:
        state = dict(cast("Mapping[str, Any]", yielded or {}))

        async def with_state(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, "state": dict(state)}, receive, send)

        transport = httpx.ASGITransport(app=cast("Any", with_state))
        chosen: dict[str, Any] = {"base_url": "http://test", "transport": transport, **options}
        async with httpx.AsyncClient(**chosen) as client:
            yield client
