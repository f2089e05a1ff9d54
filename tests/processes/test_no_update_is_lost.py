"""A thousand increments from fifty clients, while one worker is killed and one is stopped for three leases."""

import asyncio
from collections import Counter

import httpx
import pytest

from example_app.demo.client import Client, Spread
from example_app.demo.fleet import Fleet
from example_app.demo.history import Outcome, Update, faults
from tests.processes.conftest import Launch

pytestmark = pytest.mark.anyio

SKUS = ("apple", "pear", "plum")
CLIENTS, EACH = 50, 20
LEASE, FROZEN = 1, 3


@pytest.fixture(scope="module")
def fleet(launch: Launch) -> Fleet:
    return launch(lease=LEASE, pause=2)


class Hammer:
    """Fifty clients, and what they were told."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.history: list[Update] = []
        self.spread = Spread(CLIENTS, fleet.workers)
        self._grown = asyncio.Condition()

    async def client(self, sku: str) -> None:
        async with Client(self.fleet.url) as client:
            for _ in range(EACH):
                await self._connect(client)
                self.history.append(await client.increment(sku))
                async with self._grown:
                    self._grown.notify_all()

    async def until(self, count: int) -> None:
        async with self._grown:
            await self._grown.wait_for(lambda: len(self.history) >= count)

    async def _connect(self, client: Client) -> None:
        while client.worker is None:
            try:
                await self.spread.settle(client)
            except httpx.TransportError:
                await asyncio.sleep(0.05)  # a worker was killed while it answered: there are others


async def accidents(hammer: Hammer, workers: list[int]) -> None:
    killed, frozen, *_ = workers
    await hammer.until(CLIENTS * EACH // 5)
    hammer.fleet.kill(killed)
    await hammer.until(CLIENTS * EACH // 2)
    hammer.fleet.freeze(frozen)
    try:
        await asyncio.sleep(FROZEN)
    finally:
        hammer.fleet.thaw(frozen)


async def test_no_acknowledged_update_is_lost_and_tokens_only_rise(fleet: Fleet) -> None:
    hammer = Hammer(fleet)
    workers = sorted(await asyncio.to_thread(fleet.wait_ready))
    async with asyncio.TaskGroup() as group:
        group.create_task(accidents(hammer, workers))
        for number in range(CLIENTS):
            group.create_task(hammer.client(SKUS[number % len(SKUS)]))
    async with Client(fleet.url) as client:
        final = {sku: await client.quantity(sku) for sku in SKUS}

    assert faults(hammer.history, final) == []
    outcomes = Counter(update.outcome for update in hammer.history)
    assert outcomes.total() == CLIENTS * EACH
    # What the killed worker was asked for, and what the stopped one held, and no more.
    assert outcomes[Outcome.ACKNOWLEDGED] > 0.9 * CLIENTS * EACH, outcomes
    # The accidents happened to workers that had something to do.
    assert outcomes[Outcome.UNKNOWN], outcomes
