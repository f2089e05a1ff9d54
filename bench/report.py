"""The table that `make bench` prints."""

import os
import platform
import statistics
from collections.abc import Sequence

from bench.rounds import Result


def head(rounds: int) -> str:
    """What was measured on."""
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    quiet = "" if busy < 0.5 else "; the machine is BUSY, so read the intervals"
    return (
        f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores,"
        f" load {busy:.1f}{quiet}; {rounds} rounds"
    )


def table(results: Sequence[Result]) -> str:
    """One line for each row, and its note."""
    width = max(len(result.row.title) for result in results)
    lines = [f"{'':<{width}}  {'budget':>10} {'figure':>10} {'95 % interval':>19}  {'verdict':<8} case / floor"]
    for result in results:
        row = result.row
        if not result.figures:
            lines.append(f"{row.title:<{width}}  {_round(row.budget):>10} {'':>10} {'':>19}  {result.verdict:<8}")
            lines.append(f"{'':<{width}}  ({result.failure or row.note})")
            continue
        low, high = result.interval
        unit = "" if row.unit == "x" else f" {row.unit}"
        budget, figure = f"{_round(row.budget)}{unit}", f"{_round(result.figure)}{unit}"
        interval = f"{_round(low)} - {_round(high)}"
        costs = _cost(result, result.cases)
        if row.floor:
            costs += f" / {_cost(result, result.floors)}"
        lines.append(f"{row.title:<{width}}  {budget:>10} {figure:>10} {interval:>19}  {result.verdict:<8} {costs}")
        if row.note:
            lines.append(f"{'':<{width}}  ({row.note})")
    missed = sum(result.verdict == "MISSED" for result in results)
    lines.append(f"\n{len(results)} rows, {missed} budgets missed")
    return "\n".join(lines)


def _cost(result: Result, figures: Sequence[float]) -> str:
    row, cost = result.row, statistics.median(figures)
    if row.kind != "ratio":
        return f"{_round(cost * row.scale)} {row.unit}"
    return f"{_round(cost * 1e6)} us"


def _round(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
