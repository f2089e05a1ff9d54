"""What the tests of the crew share."""

from collections.abc import Iterator

import pytest

from tests.coordination.crews import Fleet, SwiftWire, Wire


@pytest.fixture(params=[Wire, SwiftWire], ids=["carried", "swift"])
def wires(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run it over both kinds of stores: whose batches a task carries, and whose requests leave at once."""
    before, Fleet.wires = Fleet.wires, request.param
    yield
    Fleet.wires = before
