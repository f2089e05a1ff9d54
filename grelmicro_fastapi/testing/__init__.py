"""For the tests of services: time that stands still, guards without a store, apps in memory, clients."""

import importlib
from typing import TYPE_CHECKING, Any, Final

from grelmicro_fastapi.testing.clock import ManualClock

if TYPE_CHECKING:
    from grelmicro_fastapi.testing.apps import memory_app
    from grelmicro_fastapi.testing.clients import async_client
    from grelmicro_fastapi.testing.guards import fake_guard, override
    from grelmicro_fastapi.testing.threads import sync_client

__all__ = ["ManualClock", "async_client", "fake_guard", "memory_app", "override", "sync_client"]

# Looked up when they are asked for: a test that needs a clock alone needs no HTTP client.
_ROOMS: Final = {
    "async_client": "clients",
    "fake_guard": "guards",
    "memory_app": "apps",
    "override": "guards",
    "sync_client": "threads",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_ROOMS[name]}"), name)
