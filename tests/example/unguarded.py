"""The shop without its guards: what `make demo` must find fault with."""

import time
from types import SimpleNamespace

from example_app.main import app
from example_app.stock import StockWrite

# A token that the table takes, and that nobody vouches for.
app.dependency_overrides[StockWrite.__metadata__[0].dependency] = lambda: SimpleNamespace(
    fencing_token=time.monotonic_ns(), poisoned=False
)
