"""The schema in PostgreSQL: what it is made of, and making it."""

import hashlib
import re
from importlib.resources import files

from asyncpg import InvalidSchemaNameError, PostgresError, UndefinedTableError

from grelmicro_fastapi.errors import SettingsValidationError
from grelmicro_fastapi.providers.postgres_connections import Link

EDITION = 1
"""Grows with every change to `postgres.sql`. A newer one is left alone: releases may run side by side."""
SOURCE = files("grelmicro_fastapi.providers").joinpath("postgres.sql").read_text("utf-8")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


def quoted(schema: str) -> str:
    """The schema's name as SQL takes it. Raises `SettingsValidationError` if it is not a plain name."""
    if not _NAME.fullmatch(schema) or schema.lower().startswith("pg_"):
        raise SettingsValidationError("schema= must be a plain name: up to 63 letters, digits and _, not pg_*")
    return f'"{schema}"'


def sql(schema: str, source: str = SOURCE) -> str:
    """The statements that make the schema, or bring it up to date. They may be run again."""
    return source.replace("@schema@", quoted(schema)).replace("@edition@", str(EDITION))


async def prepare(connection: Link, schema: str, migrate: bool) -> None:
    """See to it that the schema is there and new enough.

    Raises `SettingsValidationError` if it is not and `migrate` is False, or if this role may not make it.
    """
    if await _edition(connection, schema) >= EDITION:
        return
    cure = f'run what `PostgresProvider(schema="{schema}").sql()` returns, or `grelmicro-fastapi sql`, as its owner'
    if not migrate:
        raise SettingsValidationError(f"the schema {schema!r} is missing or too old in this database: {cure}")
    try:
        await _migrate(connection, schema)
    except PostgresError as error:
        if error.sqlstate != "42501":
            raise
    else:
        return
    raise SettingsValidationError(f"this role may not make the schema {schema!r}: {cure}")


async def _edition(connection: Link, schema: str) -> int:
    try:
        edition = await connection.fetchval(f"select edition from {quoted(schema)}.edition where law = 1")
    except (UndefinedTableError, InvalidSchemaNameError):
        return 0
    return int(edition or 0)


async def _migrate(connection: Link, schema: str) -> None:
    number = int.from_bytes(hashlib.sha256(f"grelmicro schema {schema}".encode()).digest()[:8], "big", signed=True)
    await connection.execute(
        "begin isolation level read committed read write;"
        "set local statement_timeout = '60s'; set local lock_timeout = '30s'; set local client_min_messages = warning;"
        f"select pg_advisory_xact_lock({number})"
    )
    try:
        # Another process may have made it while we waited for the lock.
        done = await _edition_inside(connection, schema) >= EDITION
        await connection.execute("commit" if done else f"{sql(schema)}; commit")
    except BaseException:
        # What is left is a transaction that nobody will end.
        connection.terminate()
        raise


async def _edition_inside(connection: Link, schema: str) -> int:
    """The same in a transaction, which an error would spoil."""
    there = await connection.fetchval("select to_regclass($1) is not null", f"{quoted(schema)}.edition")
    return await _edition(connection, schema) if there else 0
