"""`make bench`, or `make bench CASES="memory sqlite"`: every figure beside its peer's, in one interleaved run."""

import argparse
import asyncio
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from bench import page, report
from bench.cases import CASES
from bench.rounds import Result, measure
from bench.row import Row

ROUNDS = 15


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"which to measure, of {', '.join(CASES)}; all unless given")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"fewer than {ROUNDS} are for a quick look")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the figures into this page too")
    options = parser.parse_args()
    chosen = options.cases or os.environ.get("CASES", "").split() or list(CASES)
    if unknown := [name for name in chosen if name not in CASES]:
        parser.error(f"there is no {', '.join(unknown)}: choose from {', '.join(CASES)}")
    machine = report.machine(options.rounds)
    print(machine, flush=True)
    results = asyncio.run(run(chosen, options.rounds))
    print(report.table(results))
    if options.write:
        which = "" if chosen == list(CASES) else f' CASES="{" ".join(chosen)}"'
        page.write(options.write, machine, f"make bench{which}", results)


async def run(chosen: list[str], rounds: int) -> list[Result]:
    async with AsyncExitStack() as stack:
        rows: list[Row] = []
        for name in chosen:
            rows += await stack.enter_async_context(CASES[name]())
        return await measure(rows, rounds, _progress)


def _progress(done: int, rounds: int, title: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[Kround {done}/{rounds}: {title}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
