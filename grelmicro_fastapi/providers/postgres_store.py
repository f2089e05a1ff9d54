"""States in PostgreSQL. The law runs there: one call of `apply_v1` (see `postgres.sql`) is one round trip."""

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from functools import partial
from typing import TypeVar
from zlib import crc32

from asyncpg import Record

from grelmicro_fastapi.coordination.parcel import OPERATION
from grelmicro_fastapi.coordination.state import CLAIM, Reply, Verdict
from grelmicro_fastapi.coordination.store import Answer, Ask, Scope, Snapshot, Wake, Woken
from grelmicro_fastapi.errors import BackendError, SettingsValidationError
from grelmicro_fastapi.providers.postgres_connections import Connections, Link
from grelmicro_fastapi.providers.postgres_errors import (
    ERRORS,
    AgainError,
    LostError,
    MissingError,
    OddError,
    UnfitError,
    refused,
)
from grelmicro_fastapi.providers.postgres_schema import prepare, quoted
from grelmicro_fastapi.providers.postgres_wakes import PING, Ear
from grelmicro_fastapi.providers.postgres_wire import Letter, burial, drop, snapshot

T = TypeVar("T")

LANES = 2
"""Batches under way at a time: while one waits for its commit, or for a lock, the other goes on."""
_PAGE = 128
_TRIES = 5
_CLOCK = "coalesce($1::bigint, floor(extract(epoch from clock_timestamp()) * 1000)::bigint)"


class PostgresStore:
    """One loop's connections to the schema. `now` is for tests: the time in ms, in place of the server's clock."""

    scope = Scope.CLUSTER
    place = 3.0

    def __init__(
        self,
        connections: Connections,
        schema: str,
        *,
        auto_migrate: bool = True,
        timeout: float = 5.0,
        ping: float = PING,
        now: Callable[[], int] | None = None,
    ) -> None:
        self.channel = secrets.token_hex(8)
        self._connections = connections
        self._schema = schema
        self._name = quoted(schema)
        self._migrate = auto_migrate
        self._timeout = timeout
        # Whoever calls `apply` bounds it in time. A timer of our own is not free: only if it is shorter.
        self._bound = timeout if timeout < OPERATION else None
        self._now: Callable[[], int | None] = now or (lambda: None)
        self._ear = Ear(self.channel, connections, self._shout, ping)
        self._woken: Woken | None = None
        self._opened = False
        self._ready = False
        self._arranges = False
        self._plain = f"select {self._name}.apply_v1($1, $2::text::jsonb, $3, $4)"
        self._arranged = f"call {self._name}.apply_read_committed_v1($1, $2::text::jsonb, $3, $4, null)"

    async def open(self) -> None:
        """Connect, and see to the schema. Raises `SettingsValidationError` if it is missing and may not be made."""
        self._opened = True
        await self._ask(self._see_to_schema, self._timeout)

    async def close(self) -> None:
        """Close every connection."""
        self._opened, self._ready, self._woken = False, False, None
        await self._connections.close()

    def lane(self, key: str) -> Hashable:
        """A key keeps its lane, and all lanes get their share."""
        return crc32(key.encode("utf-8", "surrogatepass")) % LANES

    async def apply(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        """Let the law advance each key, all in one transaction. The caller bounds it in time."""
        letter = Letter(asks)
        try:
            reply = await self._send(letter.keys, letter.body, self._bound)
        except UnfitError as unfit:
            # What no database takes, such as half a character, spoils the whole transaction. So each goes alone.
            return [unfit] if len(asks) == 1 else [(await self.apply([ask]))[0] for ask in asks]
        answers = letter.answers(reply)
        if self._woken:
            self._tell(asks, answers, self._woken)
        return answers

    async def peek(self, key: str) -> Snapshot:
        """Read one state."""
        query = f"select {self._name}.peek_v1($1, $2)"
        return snapshot(key, await self._ask(lambda link: link.fetchval(query, key, self._now()), self._timeout))

    async def keys(self, prefix: str) -> AsyncIterator[str]:
        """Every key that starts with `prefix`, a page at a time."""
        query = f"select key from {self._name}.lock where key > $1 and starts_with(key, $2) order by key limit 1000"
        async for page in self._pages(query, prefix):
            for key in page:
                yield key

    async def listen(self, woken: Woken) -> None:
        """Report wakes for this store's seats until cancelled; raises `BackendError` if a pooler swallows them."""
        self._woken = None

        def hear(wake: Wake | None) -> None:
            # Only now: whoever is told of one wake may rely on hearing the next.
            self._woken = woken
            woken(wake)

        try:
            await self._ear.listen(hear)
        except BackendError:
            # Others are not heard. What this process does for itself it still knows.
            self._woken = woken
            raise

    async def vacate(self) -> int:
        """Bury what is dead."""
        query = (
            f"select key from {self._name}.lock where key > $2 and (until <= {_CLOCK} or due <= {_CLOCK} "
            f"or exists (select from unnest(seats) s where s.until <= {_CLOCK})) order by key limit {_PAGE}"
        )
        changed = 0
        async for page in self._pages(query, clocked=True):
            async with asyncio.timeout(self._timeout):
                answers = await self.apply(burial(page, CLAIM))
            changed += sum(isinstance(answer, Reply) and answer.verdict is Verdict.GRANTED for answer in answers)
        return changed

    async def purge(self, idle: float) -> int:
        """Drop idle names, and raise the fence from which new ones start above all that they had."""
        query = (
            f"select key from {self._name}.lock where key > $2 and touched + $3::bigint <= {_CLOCK} "
            f"and writer is null and readers = 0 and graves = 0 order by key limit {_PAGE}"
        )
        gone, span = 0, int(idle * 1000)
        async for page in self._pages(query, span, clocked=True):
            asks = burial(page, CLAIM)
            reply = await self._send(page, drop(page, span), self._timeout)
            answers = Letter(asks).answers(reply)
            gone += sum(isinstance(answer, Reply) and answer.verdict is Verdict.GRANTED for answer in answers)
        return gone

    async def _pages(self, query: str, *given: object, clocked: bool = False) -> AsyncIterator[list[str]]:
        last = ""
        while True:
            args = (self._now(), last, *given) if clocked else (last, *given)
            rows = await self._ask(partial(_rows, query, args), self._timeout)
            if not rows:
                return
            page = [str(row[0]) for row in rows]
            yield page
            last = page[-1]

    async def _send(self, keys: list[str], body: str, bound: float | None) -> str:
        """Call the law, again while it is certain that nothing was applied and that asking again may help."""
        for _ in range(_TRIES):
            arranged = self._arranges
            try:
                return await self._ask(partial(self._call, keys, body, arranged), bound)
            except OddError:
                if arranged:
                    raise
                # Perhaps the other lane has just found out too.
                self._arranges = True
            except AgainError:
                await asyncio.sleep(random.uniform(0, 0.02))
        return await self._ask(partial(self._call, keys, body, self._arranges), bound)

    async def _call(self, keys: list[str], body: str, arranged: bool, link: Link) -> str:
        query = self._arranged if arranged else self._plain
        reply: str = await link.fetchval(query, keys, body, self.channel, self._now())
        return reply

    async def _ask(self, ask: Callable[[Link], Awaitable[T]], bound: float | None) -> T:
        """Use a connection, for so many seconds at most. Only `BackendError` and settings' errors leave."""
        if not self._opened:
            closed = BackendError("the PostgreSQL store is closed")
            closed.sent = False
            raise closed
        try:
            if bound is None:
                return await self._use(ask)
            async with asyncio.timeout(bound):
                return await self._use(ask)
        except SettingsValidationError as error:
            if ask == self._see_to_schema:
                raise
            unmade = BackendError(str(error))
            unmade.sent = False
            raise unmade from None
        except (*ERRORS, ValueError) as error:
            verdict = refused(error)
            if isinstance(verdict, LostError) and not self._connections.uncached():
                raise BackendError(str(verdict)) from None
            self._ready = self._ready and not isinstance(verdict, MissingError)
            raise verdict from None

    async def _use(self, ask: Callable[[Link], Awaitable[T]]) -> T:
        link = await self._connections.take()
        try:
            if not self._ready and ask != self._see_to_schema:
                await self._see_to_schema(link)
            result = await ask(link)
        except BaseException as error:
            self._connections.give(link, error)
            raise
        self._connections.give(link)
        return result

    async def _see_to_schema(self, link: Link) -> None:
        await prepare(link, self._schema, self._migrate)
        self._ready = True

    async def _shout(self, channel: str, word: str) -> None:
        await self._ask(lambda link: link.execute("select pg_notify($1, $2)", channel, word), self._timeout)

    def _tell(self, asks: Sequence[Ask], answers: Sequence[Answer], woken: Woken) -> None:
        """Wake our own seats ourselves: the server tells only the others."""
        loop = asyncio.get_running_loop()
        for ask, answer in zip(asks, answers, strict=True):
            if isinstance(answer, Reply):
                for seat, after in answer.wakes:
                    if seat.rpartition("/")[0] == self.channel:
                        loop.call_soon(woken, Wake(ask.key, seat, after))


async def _rows(query: str, args: tuple[object, ...], link: Link) -> "list[Record]":
    return await link.fetch(query, *args)
