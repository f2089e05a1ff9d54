"""What the demo says, line by line, so that it reads the same in a terminal and in a log."""

import statistics
import time
from collections.abc import Sequence

from example_app.demo.load import SKUS, Record
from grelmicro_fastapi.coordination import ReadWriteLock
from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers.base import Provider


class Screen:
    """Prints one line for each second, and one for each event. `provider` sees the locks that the workers use."""

    def __init__(self, record: Record, provider: Provider) -> None:
        self._record = record
        self._locks = {sku: ReadWriteLock(f"stock:{sku}", backend=provider) for sku in SKUS}
        self._start = self._shown = time.monotonic()

    def head(self) -> None:
        """Say what the columns are."""
        print("\nFor each article: quantity/token and worker of the latest update, and how many workers wait (+n).")
        articles = "".join(f"  {sku:<17}" for sku in SKUS)
        print(f"{'time':>6} {'updates':>7} {'per s':>5} {'p50':>5} {'p99 ms':>6}{articles}", flush=True)

    async def show(self) -> None:
        """Say how far it is."""
        now = time.monotonic()
        fresh = self._record.acknowledged(self._shown)
        rate = len(fresh) / (now - self._shown)
        self._shown = now
        took = [(one.ended - one.sent) * 1000 for one in fresh]
        total = len(self._record.acknowledged())
        articles = "".join([f"  {await self._article(sku):<17}" for sku in SKUS])
        figures = f"{total:>7} {rate:>5.0f} {quantile(took, 50):>5} {quantile(took, 99):>6}"
        print(f"{self._time()} {figures}{articles}", flush=True)

    def say(self, event: str) -> None:
        """Say what happened."""
        print(f"{self._time()} > {event}", flush=True)

    async def _article(self, sku: str) -> str:
        update, worker = self._record.latest.get(sku, (None, None))
        if update is None:
            return "-"
        try:
            waiting = f"+{(await self._locks[sku].state()).waiting_writers}"
        except BackendError:
            waiting = "?"
        return f"{update.quantity}/{update.token} {worker} {waiting}"

    def _time(self) -> str:
        return f"{time.monotonic() - self._start:>5.1f}s"


def quantile(values: Sequence[float], percent: int) -> str:
    """The value that so many percent do not exceed, "-" if there are none."""
    if not values:
        return "-"
    return f"{statistics.quantiles([values[0], *values], n=100, method='inclusive')[percent - 1]:.0f}"
