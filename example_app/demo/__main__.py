"""`make demo`: four workers under fire, one killed and one stopped in the middle, and no update lost."""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import httpx

from example_app.demo import load
from example_app.demo.accidents import Stage, freeze_a_holder, kill_a_holder
from example_app.demo.client import Client, Spread
from example_app.demo.fleet import Fleet
from example_app.demo.history import Outcome, faults
from example_app.demo.load import SKUS, Record
from example_app.demo.screen import Screen
from grelmicro_fastapi.providers.sqlite import SqliteProvider

WRITERS, EDITORS, READERS = 12, 2, 4
PAUSE = 15
_PATIENCE = 30


def main(app: str = "example_app.main:app") -> int:
    """Run the demo for DEMO_SECONDS. Returns the exit status: 1 if an update was lost."""
    seconds = float(os.environ.get("DEMO_SECONDS") or 12)
    lease = max(0.5, seconds / 6)
    with tempfile.TemporaryDirectory(prefix="grelmicro-demo-") as folder:
        locks = Path(folder, "locks.sqlite")
        environment = {
            "COORDINATION_URL": f"sqlite:///{locks}",
            "EXAMPLE_DATABASE": str(Path(folder, "shop.sqlite")),
            "EXAMPLE_LEASE": str(lease),
            "EXAMPLE_PAUSE": str(PAUSE),
        }
        print(f"Starting four workers: uvicorn {app} --workers 4", flush=True)
        with Fleet(app, Path(folder), environment) as fleet:
            print(
                f"They serve {fleet.url}, and a lease lasts {lease:.1f} s.\n"
                f"Locks and data are SQLite files in {folder}.\n"
                f"{WRITERS} clients increment {len(SKUS)} articles (read, wait {PAUSE} ms, write),"
                f" {EDITORS} replace the catalog, {READERS} read it.\n"
                f"Meanwhile, try:  curl -X POST {fleet.url}/stock/fig/increment\n"
                f"                 {fleet.url}/docs\n"
                "Ctrl-C ends it."
            )
            return asyncio.run(show(fleet, SqliteProvider(locks), seconds))


async def show(fleet: Fleet, provider: SqliteProvider, seconds: float) -> int:
    """Everything that happens while the workers run."""
    record = Record()
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, record.over.set)
    loop.call_later(seconds, record.over.set)
    async with provider, asyncio.TaskGroup() as clients:
        screen = Screen(record, provider)
        screen.head()
        spread = Spread(WRITERS, fleet.workers)
        for number in range(WRITERS):
            clients.create_task(load.increment(fleet.url, SKUS[number % len(SKUS)], spread, record))
        for number in range(EDITORS):
            clients.create_task(load.replace(fleet.url, f"editor {number}", record))
        for _ in range(READERS):
            clients.create_task(load.read(fleet.url, record))
        accidents = clients.create_task(_accidents(Stage(fleet, provider, record, screen.say, PAUSE / 1000), seconds))
        while not record.over.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(record.over.wait(), 1)
            await screen.show()
        accidents.cancel()
    return await _conclude(fleet, record)


async def _accidents(stage: Stage, seconds: float) -> None:
    await asyncio.sleep(seconds / 4)
    await kill_a_holder(stage)
    await asyncio.sleep(seconds / 8)
    await freeze_a_holder(stage)


async def _final(fleet: Fleet, name: str) -> int:
    """Read a quantity, from whichever worker answers: one that died a moment ago may not be replaced yet."""
    async with asyncio.timeout(_PATIENCE):
        while True:
            try:
                async with Client(fleet.url) as client:
                    return await client.quantity(name)
            except httpx.HTTPError:
                await asyncio.sleep(0.1)


async def _conclude(fleet: Fleet, record: Record) -> int:
    final = {name: await _final(fleet, name) for name in {one.name for one in record.updates}}
    outcomes = Counter(one.outcome for one in record.updates)
    print(
        f"\n{outcomes[Outcome.ACKNOWLEDGED]} updates acknowledged, {outcomes[Outcome.REFUSED]} refused,"
        f" {outcomes[Outcome.UNKNOWN]} without an answer; the articles count {sum(final.values())}.\n"
        f"{len(record.catalogs)} catalogs read, {len(record.replaced)} times replaced,"
        f" {record.interrupted} requests interrupted."
    )
    found = [*faults(record.updates, final), *record.torn()]
    if found:
        print("NOT AS PROMISED:", *found, sep="\n  ")
        return 1
    print("No acknowledged update was lost, tokens only rose, no catalog was read half-written.")
    print(
        "\nTo go on by yourself:\n"
        "  .venv/bin/uvicorn example_app.main:app --workers 4\n"
        "  curl -X POST http://127.0.0.1:8000/stock/apple/increment\n"
        """  curl -X PUT http://127.0.0.1:8000/catalog -H 'content-type: application/json' -d '{"rows": ["apple"]}'\n"""
        "  curl http://127.0.0.1:8000/catalog\n"
        "  http://127.0.0.1:8000/docs"
    )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
