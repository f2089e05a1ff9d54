"""Fixtures for pytest: `pytest_plugins = ["grelmicro_fastapi.testing.fixtures"]` in your `conftest.py`."""

import pytest

from grelmicro_fastapi.providers.memory import MemoryProvider
from grelmicro_fastapi.testing.clock import ManualClock


@pytest.fixture
def manual_clock() -> ManualClock:
    """Time that stands still until the test moves it."""
    return ManualClock()


@pytest.fixture
def memory_provider(manual_clock: ManualClock) -> MemoryProvider:
    """A store in memory on that clock. Open it with `async with`, or give it to a `Grelmicro`."""
    return MemoryProvider(clock=manual_clock)
