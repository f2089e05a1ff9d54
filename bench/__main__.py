"""`make bench`, or `make bench CASES="memory sqlite"`: every figure beside its peer's, in one interleaved run."""

import argparse
import asyncio
import os
import sys
from contextlib import AsyncExitStack

from bench import report
from bench.cases import CASES
from bench.rounds import measure
from bench.row import Row

ROUNDS = 15


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"which to measure, of {', '.join(CASES)}; all unless given")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"fewer than {ROUNDS} are for a quick look")
    options = parser.parse_args()
    chosen = options.cases or os.environ.get("CASES", "").split() or list(CASES)
    if unknown := [name for name in chosen if name not in CASES]:
        parser.error(f"there is no {', '.join(unknown)}: choose from {', '.join(CASES)}")
    asyncio.run(run(chosen, options.rounds))


async def run(chosen: list[str], rounds: int) -> None:
    print(report.head(rounds), flush=True)
    async with AsyncExitStack() as stack:
        rows: list[Row] = []
        for name in chosen:
            rows += await stack.enter_async_context(CASES[name]())
        results = await measure(rows, rounds, _progress)
    print(report.table(results))


def _progress(done: int, rounds: int, title: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[Kround {done}/{rounds}: {title}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
