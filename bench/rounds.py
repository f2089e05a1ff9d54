"""All rows in turn, again and again, so that whatever else the machine does befalls them alike."""

import gc
import math
import random
import statistics
import traceback
from collections.abc import Callable, Mapping, Sequence
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
    failure: str = ""
    """Why there are no more figures."""

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
        if self.failure:
            return "FAILED"
        if not self.figures or math.isinf(self.row.budget):
            return "-"
        if self.figure <= self.row.budget:
            return "kept"
        return "MISSED" if self.interval[0] > self.row.budget else "unclear"

    def add(self, before: float, case: float, after: float) -> None:
        """Note one round."""
        self.figures.append(self.row.figure(before, case, after))
        self.cases.append(case)
        self.floors.append((before + after) / 2)


@dataclass
class _Group:
    """Rows that share their blocks."""

    case: Block
    floor: Block | None
    results: list[Result]

    async def warm_up(self) -> None:
        # Caches, connections and the adaptive interpreter warm up before anything counts.
        await _block(self.floor)
        await _block(self.case)

    async def round(self) -> None:
        before, case, after = await _block(self.floor), await _block(self.case), await _block(self.floor)
        for result in self.results:
            result.add(*(_pick(given, result.row.of) for given in (before, case, after)))


async def measure(rows: Sequence[Row], rounds: int, told: Callable[[int, int, str], None]) -> list[Result]:
    """Measure every row in each round, in an order of its own, each case between two blocks of its floor."""
    results = [Result(row) for row in rows]
    groups = _groups(results)
    for done in range(rounds + 1):
        due = [group for group in groups if (done or group.floor) and done <= group.results[0].row.at_most]
        for group in random.sample(due, len(due)):
            told(done, rounds, group.results[0].row.title)
            try:
                await (group.round() if done else group.warm_up())
            except Exception as error:
                # One peer that fails must not cost all other figures.
                traceback.print_exception(error)
                groups.remove(group)
                for result in group.results:
                    result.failure = f"{type(error).__name__}: {error}"
    return results


def _groups(results: Sequence[Result]) -> list[_Group]:
    groups: dict[tuple[Block, Block | None], _Group] = {}
    for result in results:
        case, floor = result.row.case, result.row.floor
        if case:
            groups.setdefault((case, floor), _Group(case, floor, [])).results.append(result)
    return list(groups.values())


async def _block(block: Block | None) -> float | Mapping[str, float]:
    gc.collect()
    return await block() if block else 0.0


def _pick(given: float | Mapping[str, float], name: str) -> float:
    return given.get(name, 0.0) if isinstance(given, Mapping) else given
