"""All rows in turn, again and again, so that whatever else the machine does befalls them alike."""

import gc
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.row import Block, Row

RESAMPLES = 2000


@dataclass
class Result:
    """What the rounds of one row gave."""

    row: Row
    figures: list[float] = field(default_factory=list)
    cases: list[float] = field(default_factory=list)
    floors: list[float] = field(default_factory=list)

    @property
    def figure(self) -> float:
        """The median of all rounds."""
        return statistics.median(self.figures)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % bootstrap interval of that median."""
        chance = random.Random(0)
        medians = sorted(statistics.median(chance.choices(self.figures, k=len(self.figures))) for _ in range(RESAMPLES))
        return medians[int(RESAMPLES * 0.025)], medians[int(RESAMPLES * 0.975) - 1]

    @property
    def verdict(self) -> str:
        """A budget is missed when the whole interval lies above it."""
        if self.figure <= self.row.budget:
            return "kept"
        return "MISSED" if self.interval[0] > self.row.budget else "unclear"


async def measure(rows: Sequence[Row], rounds: int, told: Callable[[int], None]) -> list[Result]:
    """Measure every row in each round, in an order of its own, each case between two blocks of its floor."""
    results = [Result(row) for row in rows]
    for row in rows:
        # Caches, connections and the adaptive interpreter warm up before anything counts.
        await _block(row.floor)
        await _block(row.case)
    for number in range(rounds):
        for result in random.sample(results, len(results)):
            row = result.row
            before, case, after = await _block(row.floor), await _block(row.case), await _block(row.floor)
            result.figures.append(row.figure(before, case, after))
            result.cases.append(case)
            result.floors.append((before + after) / 2)
        told(number + 1)
    return results


async def _block(block: Block | None) -> float:
    gc.collect()
    return await block() if block else 0.0
