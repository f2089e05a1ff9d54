"""How blocks take time. All give the seconds of one operation."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence

Once = Callable[[], Awaitable[object]]


async def median_of(once: Once, *, batches: int, each: int) -> float:
    """The median of batches."""
    took: list[float] = []
    for _ in range(batches):
        start = time.perf_counter()
        await _times(once, each)
        took.append((time.perf_counter() - start) / each)
    return statistics.median(took)


async def together(crowd: Sequence[Once], *, each: int = 4) -> float:
    """The mean, when each of a crowd does so many operations of its own at the same time as the others."""
    start = time.perf_counter()
    await asyncio.gather(*[_times(once, each) for once in crowd])
    return (time.perf_counter() - start) / (len(crowd) * each)


async def _times(once: Once, count: int) -> None:
    for _ in range(count):
        await once()
