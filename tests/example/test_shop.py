"""The shop's routes, on a store in memory, in one process."""

import asyncio
import importlib
import itertools
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace

import httpx
import pytest
from asgi_lifespan import LifespanManager

from grelmicro_fastapi.coordination import ReadWriteLock

pytestmark = pytest.mark.anyio


@pytest.fixture
async def shop(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx.AsyncClient]:
    """The shop, imported anew as each process imports it, and open."""
    monkeypatch.setenv("COORDINATION_URL", "memory://")
    for name in [name for name in sys.modules if name.split(".")[0] == "example_app"]:
        monkeypatch.delitem(sys.modules, name)
    app = importlib.import_module("example_app.main").app
    async with LifespanManager(app) as opened:
        transport = httpx.ASGITransport(app=opened.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            yield client


@pytest.fixture
def tokens(shop: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> Callable[[Iterator[int]], None]:
    """Let the guard of increments lock nothing, and have these tokens."""
    app, stock = sys.modules["example_app.main"].app, sys.modules["example_app.stock"]
    guard = stock.StockWrite.__metadata__[0].dependency

    def take(tokens: Iterator[int]) -> None:
        monkeypatch.setitem(
            app.dependency_overrides, guard, lambda: SimpleNamespace(fencing_token=next(tokens), poisoned=False)
        )

    return take


async def test_an_empty_shop_has_an_empty_catalog(shop: httpx.AsyncClient) -> None:
    answer = await shop.get("/catalog")
    assert (answer.status_code, answer.json()) == (200, {"rows": [], "generation": 0})


async def test_a_catalog_is_read_as_it_was_written_under_the_token_of_its_writer(shop: httpx.AsyncClient) -> None:
    rows = ["pear", {"name": "plum", "price": 2}, 3]
    answer = await shop.put("/catalog", json={"rows": rows})
    assert (answer.status_code, answer.json()) == (200, {"fencing_token": 1, "poisoned": False})
    assert (await shop.get("/catalog")).json() == {"rows": rows, "generation": 1}


async def test_an_increment_says_what_there_is_now_and_under_which_token(shop: httpx.AsyncClient) -> None:
    answers = [await shop.post("/stock/apple/increment") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert [answer.json() for answer in answers] == [
        {"sku": "apple", "quantity": 1, "fencing_token": 1, "poisoned": False},
        {"sku": "apple", "quantity": 2, "fencing_token": 2, "poisoned": False},
    ]
    assert (await shop.get("/stock/apple")).json() == {"sku": "apple", "quantity": 2}


async def test_what_was_never_seen_is_there_zero_times(shop: httpx.AsyncClient) -> None:
    answer = await shop.get("/stock/melon")
    assert (answer.status_code, answer.json()) == (200, {"sku": "melon", "quantity": 0})


async def test_a_worker_says_who_it_is(shop: httpx.AsyncClient) -> None:
    answer = await shop.get("/whoami")
    assert (answer.status_code, answer.json()) == (200, {"pid": os.getpid()})


async def test_increments_at_the_same_time_all_count(shop: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(*[shop.post("/stock/apple/increment") for _ in range(20)])
    assert sorted(answer.json()["quantity"] for answer in answers) == list(range(1, 21))


async def test_without_the_guard_increments_would_be_lost(
    shop: httpx.AsyncClient, tokens: Callable[[Iterator[int]], None]
) -> None:
    # So the test above shows what the guard does, and not luck.
    tokens(itertools.count(1))
    await asyncio.gather(*[shop.post("/stock/apple/increment") for _ in range(20)])
    assert (await shop.get("/stock/apple")).json()["quantity"] < 20


async def test_a_token_that_the_table_refuses_is_a_conflict(
    shop: httpx.AsyncClient, tokens: Callable[[Iterator[int]], None]
) -> None:
    tokens(iter([7, 6]))
    await shop.post("/stock/apple/increment")
    answer = await shop.post("/stock/apple/increment")
    assert answer.status_code == 409
    assert answer.json()["type"].endswith(":fenced")
    assert (await shop.get("/stock/apple")).json()["quantity"] == 1


async def test_a_catalog_that_its_writer_broke_is_repaired_by_the_next_one(shop: httpx.AsyncClient) -> None:
    catalog = ReadWriteLock("catalog", backend=sys.modules["example_app.main"].micro.coordination)
    broken = await catalog.write.acquire()
    await broken.release(poison=True)
    first, second = [await shop.put("/catalog", json={"rows": ["pear"]}) for _ in range(2)]
    assert first.json() == {"fencing_token": 2, "poisoned": True}
    assert second.json() == {"fencing_token": 3, "poisoned": False}


async def test_a_single_worker_leads_and_sweeps_under_the_token_of_its_term(shop: httpx.AsyncClient) -> None:
    election = sys.modules["example_app.background"].election
    await election.wait_for_leader()
    assert (await shop.get("/leader")).json() == {"pid": os.getpid(), "leading": True, "term": 1}
    while not (sweeps := (await shop.get("/sweeps")).json()):
        pass
    assert sweeps[0] == {"pid": os.getpid(), "fencing_token": 1}
    while not (ticks := (await shop.get("/ticks")).json()):
        pass
    assert ticks[0]["pid"] == os.getpid()
