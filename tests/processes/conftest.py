"""Real processes: `uvicorn --workers 4`, on every store that several processes can share."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from example_app.demo.fleet import Fleet

STORES = ["sqlite"]

Launch = Callable[..., Fleet]


@pytest.fixture(scope="module", params=STORES)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the locks are kept: empty, and for one module only."""
    return f"sqlite:///{tmp_path_factory.mktemp('locks')}/locks.sqlite"


@pytest.fixture(scope="module")
def launch(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """Start four workers with this lease in seconds, and this pause in milliseconds."""
    with ExitStack() as stack:

        def launch(*, lease: float, pause: float) -> Fleet:
            folder: Path = tmp_path_factory.mktemp("shop")
            environment = {
                "COORDINATION_URL": url,
                "EXAMPLE_DATABASE": str(folder / "shop.sqlite"),
                "EXAMPLE_LEASE": str(lease),
                "EXAMPLE_PAUSE": str(pause),
            }
            return stack.enter_context(Fleet("tests.processes.service:app", folder, environment))

        yield launch
