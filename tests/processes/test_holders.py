"""What becomes of a worker that is killed or stopped while it holds a lock, and of the one that comes after it."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from example_app.demo.client import Client
from example_app.demo.fleet import Fleet
from example_app.demo.history import Outcome, Update
from grelmicro_fastapi.coordination import ReadWriteLock
from grelmicro_fastapi.providers.base import Provider
from grelmicro_fastapi.providers.urls import provider_from_url
from tests.processes.conftest import Launch

pytestmark = pytest.mark.anyio

PAUSE = 800


@pytest.fixture(scope="module")
def fleet(launch: Launch) -> Fleet:
    return launch(lease=1, pause=PAUSE)


@pytest.fixture
async def provider(url: str) -> AsyncIterator[Provider]:
    async with provider_from_url(url) as provider:
        yield provider


class Caught:
    """A worker in the middle of a request, with the lock in its hands."""

    def __init__(self, worker: int, answer: "asyncio.Task[Any]") -> None:
        self.worker = worker
        self.answer = answer


async def catch(provider: Provider, client: Client, sku: str, request: Coroutine[Any, Any, Any]) -> Caught:
    lock = ReadWriteLock(f"stock:{sku}", backend=provider)
    worker = await client.meet()
    answer = asyncio.create_task(request)
    while not (await lock.state()).writing:
        assert not answer.done(), "the request ended before it was seen to hold the lock"
        await asyncio.sleep(0.005)  # another process is looked at from outside
    # The store knows of a grant before the worker does.
    await asyncio.sleep(PAUSE / 1000 / 3)
    return Caught(worker, answer)


async def succeed(fleet: Fleet, sku: str, but: int | None = None) -> Update:
    """The update of the next writer, at another worker than `but`, which may still take requests to refuse them."""
    async with Client(fleet.url) as client:
        await client.meet(lambda worker: worker != but)
        return await client.increment(sku)


async def test_the_successor_of_a_killed_holder_is_told_and_ends_it(fleet: Fleet, provider: Provider) -> None:
    async with Client(fleet.url) as client:
        caught = await catch(provider, client, "fig", client.increment("fig"))
        fleet.kill(caught.worker)
        assert (await caught.answer).outcome is Outcome.UNKNOWN
    first, second = await succeed(fleet, "fig"), await succeed(fleet, "fig")
    assert first.outcome is second.outcome is Outcome.ACKNOWLEDGED
    assert first.poisoned
    assert not second.poisoned
    # The killed holder had the token before, and never wrote.
    assert (first.token, first.quantity) == (2, 1)


async def frozen(
    fleet: Fleet, provider: Provider, sku: str, request: Callable[[Client], Coroutine[Any, Any, Any]]
) -> tuple[Any, Update]:
    """Stop a holder until its successor has written. What its client was told, and the successor's."""
    async with Client(fleet.url) as client:
        caught = await catch(provider, client, sku, request(client))
        fleet.freeze(caught.worker)
        try:
            successor = await succeed(fleet, sku, but=caught.worker)
        finally:
            fleet.thaw(caught.worker)
        return await caught.answer, successor


async def test_a_token_read_before_the_worker_was_stopped_is_refused_by_the_table(
    fleet: Fleet, provider: Provider
) -> None:
    late, successor = await frozen(fleet, provider, "kiwi", lambda client: client.increment("kiwi"))
    assert (late.outcome, late.problem) == (Outcome.REFUSED, "fenced")
    assert successor.outcome is Outcome.ACKNOWLEDGED
    assert successor.poisoned
    async with Client(fleet.url) as client:
        assert await client.quantity("kiwi") == successor.quantity == 1


async def test_a_token_asked_for_after_the_worker_was_stopped_is_not_given(fleet: Fleet, provider: Provider) -> None:
    late, successor = await frozen(fleet, provider, "lime", lambda client: client.ask("POST", "/stock/lime/late"))
    assert late.status_code == 503
    assert late.json()["type"].endswith(":guard-lost")
    assert successor.outcome is Outcome.ACKNOWLEDGED


async def test_a_worker_that_is_told_to_end_finishes_what_it_holds(fleet: Fleet, provider: Provider) -> None:
    async with Client(fleet.url) as client:
        caught = await catch(provider, client, "nut", client.increment("nut"))
        os.kill(caught.worker, signal.SIGTERM)
        successor = await succeed(fleet, "nut", but=caught.worker)
        assert (await caught.answer).outcome is Outcome.ACKNOWLEDGED
    assert successor.outcome is Outcome.ACKNOWLEDGED
    assert not successor.poisoned
    assert (successor.quantity, successor.token) == (2, 2)
