"""States in PostgreSQL: for services that have one anyway, and want their locks as durable as their data."""

import contextlib
from collections.abc import Callable
from typing import Self
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

try:
    from asyncpg import Record
    from asyncpg.pool import Pool
except ImportError as missing:
    raise ImportError("PostgresProvider needs asyncpg: pip install grelmicro-fastapi[postgres]") from missing

from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.coordination.store import Scope
from grelmicro_fastapi.errors import SettingsValidationError
from grelmicro_fastapi.providers.base import Provider
from grelmicro_fastapi.providers.postgres_connections import Borrowed, Connections, Held
from grelmicro_fastapi.providers.postgres_schema import quoted, sql
from grelmicro_fastapi.providers.postgres_store import PostgresStore
from grelmicro_fastapi.settings import flag, read_env, seconds, text, whole

_SCHEMES = ("postgresql", "postgres", "postgresql+asyncpg", "postgres+asyncpg")
_CACHE = ("statement_cache_size", "prepared_statement_cache_size")


class PostgresProvider(Provider):
    """Keeps states in a schema of a PostgreSQL database, version 14 or newer.

    `url` is a libpq URL, or SQLAlchemy's (`postgresql+asyncpg://`); without it `POSTGRES_URL` says where. The schema is
    made when it is missing or old; with `auto_migrate=False` that is left to you, and `sql()` says how. Behind a
    transaction pooler pass `statement_cache_size=0`, and in `listen_url` an address that leads past the pooler: without
    it wakes are not heard there, and waiters poll. `timeout` is how many seconds a call may take before it is a
    `BackendError`.

    Raises `SettingsValidationError` for a value that cannot be, and when opened if the schema is missing and may not be
    made.
    """

    name = "postgres"
    scope = Scope.CLUSTER

    def __init__(
        self,
        url: str | None = None,
        *,
        schema: str = "grelmicro",
        auto_migrate: bool = True,
        listen_url: str | None = None,
        statement_cache_size: int = 100,
        timeout: float = 5.0,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(clock=clock)
        given = read_env("POSTGRES_URL") if url is None else url
        if given is None:
            raise SettingsValidationError("PostgresProvider needs a URL: pass one, or set POSTGRES_URL")
        source = "POSTGRES_URL" if url is None else "url="
        self._url, cached = _plain(given, source)
        whole("statement_cache_size=", statement_cache_size)
        self._cached = statement_cache_size if cached is None else cached
        self._pool: Pool[Record] | None = None
        self._set(schema, auto_migrate, listen_url, timeout)

    @classmethod
    def from_url(cls, url: str, *, clock: Clock | None = None) -> Self:
        """Make the provider of a URL, with everything else as it is by default."""
        return cls(url, clock=clock)

    @classmethod
    def from_client(
        cls,
        pool: "Pool[Record]",
        *,
        schema: str = "grelmicro",
        auto_migrate: bool = True,
        listen_url: str | None = None,
        timeout: float = 5.0,
        clock: Clock | None = None,
    ) -> Self:
        """Use the connections of an `asyncpg.Pool`, which is never closed here.

        Each call borrows one, and another stays out of the pool to listen on, unless `listen_url` says where to.
        """
        if not hasattr(pool, "acquire"):
            raise SettingsValidationError(
                f"PostgresProvider.from_client takes an asyncpg.Pool, and no {type(pool).__name__}: "
                "PostgresProvider(url) takes a URL"
            )
        provider = cls("postgresql://", clock=clock)
        provider._pool = pool
        provider._set(schema, auto_migrate, listen_url, timeout)
        return provider

    def sql(self) -> str:
        """Return the statements that make the schema, or bring it up to date. They may be run again and again."""
        return sql(self.schema)

    def _set(self, schema: str, auto_migrate: bool, listen_url: str | None, timeout: float) -> None:
        text("schema=", schema)
        quoted(schema)
        flag("auto_migrate=", auto_migrate)
        text("listen_url=", listen_url, needed=False)
        self.schema = schema
        self._auto_migrate = auto_migrate
        self._timeout = seconds("timeout=", timeout, least=0.001)
        self._listen_url = _plain(listen_url, "listen_url=")[0] if listen_url else None

    def _store(self) -> PostgresStore:
        return self._store_at(None)

    def _store_at(self, now: Callable[[], int] | None) -> PostgresStore:
        connections: Connections
        if self._pool:
            connections = Borrowed(self._pool, self._listen_url, self._timeout)
        else:
            connections = Held(self._url, self._listen_url, self._timeout, self._cached)
        migrate, timeout = self._auto_migrate, self._timeout
        return PostgresStore(connections, self.schema, auto_migrate=migrate, timeout=timeout, now=now)

    def __repr__(self) -> str:
        return f"PostgresProvider(schema={self.schema!r})"


def _plain(url: str, source: str) -> tuple[str, int | None]:
    """The URL as the driver takes it, and the size of the statement cache if SQLAlchemy's options name one."""
    text(source, url)
    parts = urlsplit("")
    options: dict[str, str] = {}
    cached = None
    # Raised further down, so that no exception that holds the URL travels along.
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        for name in _CACHE:
            if size := options.pop(name, None):
                cached = int(size)
    if parts.scheme.lower() not in _SCHEMES:
        raise SettingsValidationError(f"{source} must be a PostgreSQL URL: postgresql://user@host:5432/database")
    if "ssl" in options:
        options.setdefault("sslmode", options.pop("ssl"))
    if "," in parts.netloc:
        # Several hosts: the one that takes writes.
        options.setdefault("target_session_attrs", "read-write")
    return urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(options), "")), cached
