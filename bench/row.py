"""One line of the report: what is measured, against what, and what it may cost."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal

Block = Callable[[], Awaitable[float]]
"""Measure for a moment, and return one figure. Less is better."""


@dataclass(frozen=True)
class Row:
    """A figure and its budget.

    `ratio` is the case divided by its floor, `difference` the case less its floor, and `alone` has no floor. `scale`
    turns what blocks return into `unit`, except for ratios.
    """

    title: str
    case: Block
    budget: float
    floor: Block | None = None
    kind: Literal["ratio", "difference", "alone"] = "ratio"
    unit: str = "x"
    scale: float = 1.0
    note: str = ""

    def figure(self, before: float, case: float, after: float) -> float:
        """The figure of one round, from a block of the case and the blocks of the floor around it."""
        floor = (before + after) / 2
        if self.kind == "ratio":
            return case / floor
        return (case - floor if self.kind == "difference" else case) * self.scale


Cases = Callable[[], AbstractAsyncContextManager[list[Row]]]
"""Sets up what its rows need, and takes it down again."""
