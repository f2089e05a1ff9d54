"""Clients that hammer the shop until it is over, and remember everything they were told."""

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx

from example_app.demo.client import Client, Spread
from example_app.demo.history import Outcome, Update

SKUS = ("apple", "pear", "plum")
_LINES = 20


@dataclass
class Record:
    """What all clients together have seen."""

    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when clients are to end. They finish what they have asked for: what nobody waits for nobody knows."""
    updates: list[Update] = field(default_factory=list[Update])
    latest: dict[str, tuple[Update, int | None]] = field(default_factory=dict[str, tuple[Update, int | None]])
    """The latest acknowledged update of each article, and the worker that made it."""
    catalogs: list[tuple[int, list[str]]] = field(default_factory=list[tuple[int, list[str]]])
    """The generation and the rows of each catalog that was read."""
    replaced: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    """The rows that were acknowledged under each token."""
    interrupted: int = 0
    """Requests for the catalog that failed."""

    def note(self, update: Update, worker: int | None) -> None:
        """Remember one update."""
        self.updates.append(update)
        if update.outcome is Outcome.ACKNOWLEDGED:
            self.latest[update.name] = update, worker

    def acknowledged(self, since: float = 0) -> list[Update]:
        """The updates acknowledged since then."""
        return [one for one in self.updates if one.outcome is Outcome.ACKNOWLEDGED and one.ended >= since]

    def torn(self) -> Iterator[str]:
        """Catalogs that nobody can have written as they were read."""
        for generation, rows in self.catalogs:
            if len(set(rows)) > 1 or len(rows) not in (0, _LINES):
                yield f"catalog: generation {generation} was read half-written"
            elif rows != self.replaced.get(generation, rows):
                yield f"catalog: generation {generation} was read with the rows of another"


async def increment(url: str, sku: str, spread: Spread, record: Record) -> None:
    """Increment one article again and again."""
    async with Client(url) as client:
        while not record.over.is_set():
            try:
                worker = client.worker or await spread.settle(client)
            except httpx.HTTPError:
                await asyncio.sleep(0.1)
                continue
            record.note(await client.increment(sku), worker)


async def replace(url: str, name: str, record: Record) -> None:
    """Replace the catalog again and again, each time with one text in every line."""
    async with Client(url) as client:
        for number in itertools.count():
            if record.over.is_set():
                return
            rows = [f"revision {number} of {name}"] * _LINES
            try:
                replaced = await client.replace(rows)
                record.replaced[replaced["fencing_token"]] = rows
            except httpx.HTTPError:
                record.interrupted += 1
            await asyncio.sleep(0.1)


async def read(url: str, record: Record) -> None:
    """Read the catalog again and again."""
    async with Client(url) as client:
        while not record.over.is_set():
            try:
                catalog = await client.catalog()
                record.catalogs.append((catalog["generation"], catalog["rows"]))
            except httpx.HTTPError:
                record.interrupted += 1
            await asyncio.sleep(0.02)
