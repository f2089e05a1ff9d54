"""The shop's own data, in tables that refuse a fencing token lower than one they have seen.

Locks keep two workers apart. The tables are the second line: a worker that was stopped in the middle, for longer than
its lease, goes on without knowing that it has lost the lock, and its write must not undo what came after it.

Every method is one statement, so it happens as a whole or not at all, in one visit to the thread of the connection.
"""

import asyncio
import json
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Annotated, Self

import aiosqlite
from fastapi import Depends
from pydantic import JsonValue

from example_app.settings import settings
from grelmicro_fastapi.errors import FencedError

_TABLES = """
    CREATE TABLE IF NOT EXISTS catalog (id INTEGER PRIMARY KEY CHECK (id = 1), rows TEXT, lock_fence INTEGER);
    CREATE TABLE IF NOT EXISTS stock (sku TEXT PRIMARY KEY, quantity INTEGER, lock_fence INTEGER);
    CREATE TABLE IF NOT EXISTS sweep (id INTEGER PRIMARY KEY, pid INTEGER, fencing_token INTEGER);
    CREATE TABLE IF NOT EXISTS tick (id INTEGER PRIMARY KEY, pid INTEGER, second INTEGER);
"""

# The same hold may write the catalog as often as it likes: a token is good again.
_REPLACE = """
    INSERT INTO catalog VALUES (1, :rows, :token)
    ON CONFLICT DO UPDATE SET rows = :rows, lock_fence = :token WHERE lock_fence <= :token
    RETURNING id
"""

# One hold, one write: a token is good once.
_PUT_QUANTITY = """
    INSERT INTO stock VALUES (:sku, :quantity, :token)
    ON CONFLICT DO UPDATE SET quantity = :quantity, lock_fence = :token WHERE lock_fence < :token
    RETURNING sku
"""

# A leader sweeps many times in one term. One that does not lead any more has a token lower than the last.
_SWEEP = """
    INSERT INTO sweep (pid, fencing_token) SELECT :pid, :token
    WHERE :token >= (SELECT coalesce(max(fencing_token), 0) FROM sweep)
    RETURNING id
"""


class Database:
    """One connection to the file. Every worker has its own."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection

    async def rows(self) -> list[JsonValue]:
        """The catalog."""
        found = await self._run("SELECT rows FROM catalog")
        return json.loads(found[0][0]) if found else []

    async def replace(self, rows: list[JsonValue], *, token: int) -> None:
        """Replace the catalog. Raises `FencedError` if a newer holder has."""
        if not await self._run(_REPLACE, rows=json.dumps(rows), token=token):
            raise FencedError("catalog")

    async def quantity(self, sku: str) -> int:
        """How many there are, 0 of what was never seen."""
        found = await self._run("SELECT quantity FROM stock WHERE sku = :sku", sku=sku)
        return found[0][0] if found else 0

    async def put_quantity(self, sku: str, quantity: int, *, token: int) -> None:
        """Write how many there are. Raises `FencedError` if this holder or a newer one has."""
        if not await self._run(_PUT_QUANTITY, sku=sku, quantity=quantity, token=token):
            raise FencedError(f"stock:{sku}")

    async def sweep(self, pid: int, *, token: int) -> None:
        """Note a sweep. Raises `FencedError` if a later leader has swept."""
        if not await self._run(_SWEEP, pid=pid, token=token):
            raise FencedError("sweep")

    async def sweeps(self) -> list[tuple[int, int]]:
        """Who swept, and under which token: the last thousand, in order."""
        found = await self._run("SELECT pid, fencing_token FROM sweep ORDER BY id DESC LIMIT 1000")
        return [(row[0], row[1]) for row in reversed(found)]

    async def tick(self, pid: int, second: int) -> None:
        """Note who counted that second. Nothing here refuses it twice, so that it could be seen."""
        await self._run("INSERT INTO tick (pid, second) VALUES (:pid, :second)", pid=pid, second=second)

    async def ticks(self) -> list[tuple[int, int]]:
        """Who counted, and which second: the last thousand, in order."""
        found = await self._run("SELECT pid, second FROM tick ORDER BY id DESC LIMIT 1000")
        return [(row[0], row[1]) for row in reversed(found)]

    async def _run(self, sql: str, **values: str | int) -> list[aiosqlite.Row]:
        return list(await self._connection.execute_fetchall(sql, values))


@asynccontextmanager
async def connected(path: str) -> AsyncGenerator[Database]:
    """Connect to the file, and make what is missing in it."""
    async with aiosqlite.connect(path, timeout=10, isolation_level=None) as connection:
        async with asyncio.timeout(10):
            await _prepare(connection)
        yield Database(connection)


async def _prepare(connection: aiosqlite.Connection) -> None:
    while True:
        try:
            await connection.executescript(f"PRAGMA journal_mode = WAL; {_TABLES}")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            # Workers that start together refuse each other the switch to WAL, and do not wait for it.
            await asyncio.sleep(0.01)
        else:
            return


class Shop:
    """The connection of this worker: opened and closed with the app, for requests and background tasks."""

    def __init__(self, path: str) -> None:
        self._connecting = connected(path)
        self._database: Database | None = None

    @property
    def database(self) -> Database:
        """The shop's data, while the app is open."""
        assert self._database is not None, "the shop is closed"
        return self._database

    async def __aenter__(self) -> Self:
        self._database = await self._connecting.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database = None
        await self._connecting.__aexit__(kind, error, trace)


shop = Shop(settings.database)
Data = Annotated[Database, Depends(lambda: shop.database)]
