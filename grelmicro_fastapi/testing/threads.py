"""A client for tests without `async`: the app runs on a loop in another thread."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.testclient import TestClient


@contextmanager
def sync_client(app: Starlette, **options: Any) -> Generator[TestClient, None, None]:
    """A client of the app while its lifespan runs. `options` are those of Starlette's `TestClient`."""
    with TestClient(app, **options) as client:
        yield client
