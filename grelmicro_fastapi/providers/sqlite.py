"""Locks in a SQLite file: for the processes of one host, without a server."""

import os
import re
from collections.abc import Awaitable, Iterable
from pathlib import Path
from typing import Any, Literal, Protocol, Self, cast, get_args

from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.coordination.store import Scope
from grelmicro_fastapi.errors import SettingsValidationError
from grelmicro_fastapi.providers.base import Provider
from grelmicro_fastapi.providers.sqlite_store import SqliteStore
from grelmicro_fastapi.settings import read_env, seconds

Synchronous = Literal["OFF", "NORMAL", "FULL", "EXTRA"]


class Client(Protocol):
    """What is needed of an `aiosqlite.Connection`."""

    def execute_fetchall(self, sql: str, /) -> Awaitable[Iterable[Any]]:
        """Run one statement and return its rows."""
        ...


class SqliteProvider(Provider):
    """Keeps states in a SQLite file on a local disk. Its scope is `Scope.HOST`: the processes that share the file.

    `path` is a path or an SQLAlchemy URL (`sqlite:///relative.db`, `sqlite:////absolute.db`); without it `SQLITE_PATH`
    says where. The file is made if it is missing, its folder is not. With `synchronous="FULL"` every acknowledged
    write survives a power cut; less is faster, and after a power cut fencing tokens may repeat. `timeout` is how many
    seconds a call waits while other processes write, before it is a `BackendError`.

    Raises `SettingsValidationError` for a memory database (use `MemoryProvider`) or a missing path, and when opened
    for a folder that is missing, or a file on a network file system.
    """

    name = "sqlite"
    scope = Scope.HOST

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        synchronous: Synchronous = "FULL",
        timeout: float = 5.0,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(clock=clock)
        given = read_env("SQLITE_PATH") if path is None else _text(path)
        if given is None:
            raise SettingsValidationError("SqliteProvider needs a path: pass one, or set SQLITE_PATH")
        if synchronous not in get_args(Synchronous):
            raise SettingsValidationError(f"synchronous= must be one of {', '.join(get_args(Synchronous))}")
        self.path = _file_of(given)
        self._synchronous = synchronous
        self._timeout = seconds("timeout=", timeout, least=0.001)
        self._client: Client | None = None

    @classmethod
    def from_client(cls, client: Client, *, timeout: float = 5.0, clock: Clock | None = None) -> Self:
        """Use the file of an open `aiosqlite.Connection`.

        The connection itself is only asked which file it has, and never closed: a lock's transaction must not get
        mixed with yours, so locks have a connection of their own.
        """
        if not hasattr(client, "execute_fetchall"):
            raise SettingsValidationError(
                f"SqliteProvider.from_client takes an aiosqlite.Connection, and no {type(client).__name__}: "
                "SqliteProvider(path) takes a path"
            )
        provider = cls(Path("not known yet"), timeout=timeout, clock=clock)
        provider._client = client
        return provider

    async def open(self) -> None:
        """Connect on the running loop."""
        if self._client:
            for _, schema, file in await self._client.execute_fetchall("PRAGMA database_list"):
                if schema == "main":
                    self.path = _file_of(file)
        self._refuse_no_place()
        await super().open()

    def _refuse_no_place(self) -> None:
        if not self.path.parent.is_dir():
            raise SettingsValidationError(
                f"the folder of the SQLite file {str(self.path)!r} does not exist: make it, or choose another path"
            )
        if self.path.is_dir():
            raise SettingsValidationError(f"{str(self.path)!r} is a folder: choose the path of a file in it")

    def _store(self) -> SqliteStore:
        return SqliteStore(self.path, self.clock, synchronous=self._synchronous, timeout=self._timeout)


def _text(path: object) -> str:
    if not isinstance(path, str | os.PathLike):
        raise SettingsValidationError(f"a SQLite path is text or a Path, and not {type(path).__name__}")
    return str(cast("os.PathLike[str] | str", path))


def _file_of(given: str) -> Path:
    if url := re.match(r"sqlite(\+\w+)?:(?P<rest>.*)", given):
        if not url["rest"].startswith("///") and url["rest"] != "//":
            raise SettingsValidationError("a SQLite URL has three slashes before the path: sqlite:///relative/path.db")
        if "?" in given:
            raise SettingsValidationError("a SQLite URL here takes no options: pass them as keywords")
        given = url["rest"][3:]
    if not given or ":memory:" in given or given.startswith("file:"):
        raise SettingsValidationError(
            "SqliteProvider needs a file that other processes can open: for locks in memory use MemoryProvider"
        )
    return Path(given)
