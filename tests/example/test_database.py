"""The tables of the shop are the second line: a token that is too low writes nothing."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from example_app.database import Database, connected
from grelmicro_fastapi.errors import FencedError

pytestmark = pytest.mark.anyio


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with connected(str(tmp_path / "shop.sqlite")) as database:
        yield database


async def test_what_was_never_seen_is_there_zero_times(database: Database) -> None:
    assert await database.quantity("apple") == 0
    assert await database.rows() == []


async def test_a_quantity_is_written_under_a_higher_token(database: Database) -> None:
    await database.put_quantity("apple", 5, token=3)
    await database.put_quantity("apple", 6, token=4)
    assert await database.quantity("apple") == 6


@pytest.mark.parametrize("token", [2, 3])
async def test_a_quantity_refuses_a_token_that_was_used_or_passed_over(database: Database, token: int) -> None:
    await database.put_quantity("apple", 5, token=3)
    with pytest.raises(FencedError) as refused:
        await database.put_quantity("apple", 9, token=token)
    assert refused.value.name == "stock:apple"
    assert await database.quantity("apple") == 5


async def test_each_article_has_tokens_of_its_own(database: Database) -> None:
    await database.put_quantity("apple", 5, token=30)
    await database.put_quantity("pear", 1, token=2)
    assert await database.quantity("pear") == 1


async def test_one_hold_may_replace_the_catalog_twice(database: Database) -> None:
    await database.replace(["pear"], token=3)
    await database.replace([{"name": "plum", "price": 2}], token=3)
    assert await database.rows() == [{"name": "plum", "price": 2}]


async def test_the_catalog_refuses_a_token_that_was_passed_over(database: Database) -> None:
    await database.replace(["pear"], token=3)
    with pytest.raises(FencedError, match="catalog"):
        await database.replace(["apple"], token=2)
    assert await database.rows() == ["pear"]


async def test_a_worker_that_meets_another_one_at_a_new_file_gets_ready_after_it(tmp_path: Path) -> None:
    path = str(tmp_path / "shop.sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        # Now SQLite refuses the switch to WAL, and does not wait for it.
        other.execute("BEGIN IMMEDIATE")
        asyncio.get_running_loop().call_later(0.1, other.rollback)
        async with connected(path) as database:
            assert not other.in_transaction
            assert await database.quantity("apple") == 0


async def test_what_one_worker_wrote_another_one_respects(database: Database, tmp_path: Path) -> None:
    async with connected(str(tmp_path / "shop.sqlite")) as other:
        await other.put_quantity("apple", 7, token=9)
    assert await database.quantity("apple") == 7
    with pytest.raises(FencedError):
        await database.put_quantity("apple", 1, token=8)


async def test_a_sweep_of_a_leader_of_old_is_refused(database: Database) -> None:
    await database.sweep(1, token=3)
    await database.sweep(1, token=3)
    await database.sweep(2, token=4)
    with pytest.raises(FencedError):
        await database.sweep(1, token=3)
    assert await database.sweeps() == [(1, 3), (1, 3), (2, 4)]
