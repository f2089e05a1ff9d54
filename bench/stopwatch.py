"""How blocks take time."""

import statistics
import time
from collections.abc import Awaitable, Callable

Once = Callable[[], Awaitable[object]]


async def median(once: Once, *, batches: int, each: int = 1) -> float:
    """The median seconds of one operation. With `each`, so many are timed together: a clock costs time too."""
    took = list[float]()
    for _ in range(batches):
        start = time.perf_counter()
        for _ in range(each):
            await once()
        took.append((time.perf_counter() - start) / each)
    return statistics.median(took)


async def mean(whole: Once, *, operations: int) -> float:
    """Seconds for each of the operations that `whole` does."""
    start = time.perf_counter()
    await whole()
    return (time.perf_counter() - start) / operations
