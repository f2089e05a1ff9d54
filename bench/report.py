"""What `make bench` prints."""

import math
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path

from bench.rounds import Result

_HEAD = ("", "budget", "figure", "95 % interval", "verdict", "case / floor")


def machine(rounds: int) -> str:
    """What was measured on, and how busy it was with other things."""
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    quiet = "" if busy < 0.5 else " (BUSY: read the intervals)"
    return (
        f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores{_model()},"
        f" load {busy:.1f}{quiet}, {rounds} rounds"
    )


def table(results: Sequence[Result]) -> str:
    """One line for each row, and its note."""
    rows = [_HEAD, *(cells(result) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = [_line(_HEAD, widths)]
    for result, row in zip(results, rows[1:], strict=True):
        lines.append(_line(row, widths))
        if note := result.failure or result.row.note:
            lines.append(f"{'':<{widths[0]}}  ({note})")
    missed = sum(result.verdict == "MISSED" for result in results)
    lines.append(f"\n{len(results)} rows, {missed} budgets missed")
    return "\n".join(lines)


def cells(result: Result) -> tuple[str, str, str, str, str, str]:
    """The words of one line."""
    row = result.row
    unit = f" {row.unit}".rstrip()
    budget = "none" if math.isinf(row.budget) else f"{_round(row.budget)}{unit}"
    if not result.figures:
        return row.title, budget, "", "", result.verdict, ""
    low, high = result.interval
    costs = _cost(result, result.cases)
    if row.floor and row.kind != "alone":
        costs += f" / {_cost(result, result.floors)}"
    interval = f"{_round(low)} - {_round(high)}"
    return row.title, budget, f"{_round(result.figure)}{unit}", interval, result.verdict, costs


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    title, *middle, costs = row
    aligned = [f"{cell:>{width}}" for cell, width in zip(middle, widths[1:-1], strict=True)]
    return "  ".join([f"{title:<{widths[0]}}", *aligned, costs]).rstrip()


def _cost(result: Result, figures: Sequence[float]) -> str:
    row, cost = result.row, statistics.median(figures)
    if row.kind != "ratio":
        return f"{_round(cost * row.scale)} {row.unit}".rstrip()
    return f"{_round(cost * 1e3)} ms" if cost >= 0.01 else f"{_round(cost * 1e6)} us"


def _round(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _model() -> str:
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f" of an {names[0]}" if names else ""
