"""One line of the report: what is measured, against what, and what it may cost."""

import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal

NO_BUDGET = math.inf
"""For a row that is there to be compared with, and promises nothing."""

Block = Callable[[], Awaitable[float | Mapping[str, float]]]
"""Measure for a moment, and return a figure, or several by name. Less is better."""


@dataclass(frozen=True)
class Row:
    """A figure and its budget.

    `ratio` is the case divided by its floor, `difference` the case less its floor, and `alone` has no floor. `scale`
    turns what blocks return into `unit`, except for ratios. Rows of the same blocks are measured at once, and `of`
    says which of the blocks' figures is whose. A row without a case cannot be measured here; its note says why.
    """

    title: str
    case: Block | None
    budget: float
    floor: Block | None = None
    kind: Literal["ratio", "difference", "alone"] = "ratio"
    unit: str = "x"
    scale: float = 1.0
    note: str = ""
    of: str = ""
    at_most: int = 10_000
    """Rounds, where a block takes long and its figure hardly varies."""

    def figure(self, before: float, case: float, after: float) -> float:
        """The figure of one round, from a block of the case and the blocks of the floor around it."""
        floor = (before + after) / 2
        if self.kind == "ratio":
            return case / floor
        return (case - floor if self.kind == "difference" else case) * self.scale


Cases = Callable[[], AbstractAsyncContextManager[list[Row]]]
"""Sets up what its rows need, and takes it down again."""

NO_PEER = "no peer: GRELMICRO_PYTHON names no Python that has grelmicro"


def against_peer(title: str, case: Block, budget: float, floor: Block | None, of: str = "") -> Row:
    """The row of a ratio to grelmicro, which may not be on this machine."""
    title = f"{title} / grelmicro"
    return Row(title, case, budget, floor, of=of) if floor else Row(title, None, budget, note=NO_PEER)
