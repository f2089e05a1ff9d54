"""The store that Redis and Valkey are."""

import asyncio
import logging
import re
import secrets
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from functools import partial
from typing import Any, cast

from grelmicro_fastapi.coordination.futures import first_of
from grelmicro_fastapi.coordination.state import CLAIM, Acquire, Reply, Vacate, Verdict
from grelmicro_fastapi.coordination.store import Answer, Ask, Flight, Landed, Scope, Snapshot, Wake, Woken
from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers.base import newer
from grelmicro_fastapi.providers.redis_calls import Calls, Part, parts_of
from grelmicro_fastapi.providers.redis_driver import REFUSALS, Driver
from grelmicro_fastapi.providers.redis_ears import Ears, EverySlot, OneChannel
from grelmicro_fastapi.providers.redis_pipe import Errand
from grelmicro_fastapi.providers.redis_protocol import Word
from grelmicro_fastapi.providers.redis_site import Cluster, OneServer, slot_of
from grelmicro_fastapi.providers.redis_trip import Trip
from grelmicro_fastapi.providers.redis_wire import LOOK, answered, drop, snapshot, touched, words

_log = logging.getLogger("grelmicro_fastapi.providers")

_PAGE = 200


class RedisStore:
    """One loop's view of the states on a server, or on a cluster.

    `now` is the server's clock unless it is handed in.
    """

    scope = Scope.CLUSTER
    place = 3.0

    def __init__(
        self,
        driver: Driver,
        site: OneServer | Cluster,
        *,
        prefix: str = "",
        now: Callable[[], int] | None = None,
    ) -> None:
        self.channel = secrets.token_hex(8)
        self._driver = driver
        self._site = site
        self._prefix = prefix
        self._now = now
        self._seat = f"{self.channel}/"
        self._calls = Calls(prefix, self.channel, now, sharded=site.sharded)
        self._woken: Woken | None = None
        self._mute = asyncio.Event()
        self._ears: Ears
        if isinstance(site, Cluster):
            self._ears = EverySlot(site, lambda slot: self._calls.speaks(slot) + self.channel, prefix)
        else:
            self._ears = OneChannel(site.node, self._calls.speaks(0) + self.channel, prefix)

    @property
    def operation(self) -> float:
        """Seconds that a batch may take."""
        return self._site.operation

    async def open(self) -> None:
        """Connect, and warn if the server may throw locks away."""
        await self._site.open()
        for node in await self._site.nodes():
            (answer,) = await node.exchange([("CONFIG", "GET", "maxmemory-policy")])
            if isinstance(answer, list) and b"allkeys" in b"".join(cast("list[bytes]", answer)):
                _log.warning(
                    "the %s server's maxmemory-policy is allkeys-*: when its memory is full it drops locks and their "
                    "fences; set it to noeviction",
                    self._driver.name,
                )
                break

    async def close(self) -> None:
        """Hang up."""
        await self._site.close()

    def lane(self, key: str) -> Hashable:
        """Everything goes to one server, or to the owner of the key's slot."""
        return self._site.lane(self._prefix + key)

    async def apply(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        """Let the script advance each key: all commands of a key in one call, all calls for a server in one write."""
        if self._site.sharded:
            await self._cover(asks)
        parts = parts_of(asks)
        calls = [self._calls.call(key, words([asks[place] for place in mine])) for key, mine in parts]
        try:
            got = await self._site.run(calls)
        except BackendError as error:
            self._missed(error)
            raise
        return self._assemble(asks, parts, got)

    def send(self, asks: Sequence[Ask], landed: Landed) -> Flight | None:
        """The same, in the step that asks, where a connection to the one server is ready."""
        return self._leave(asks, landed, None)

    def _leave(self, asks: Sequence[Ask], landed: Landed, behind: Errand | None) -> Flight | None:
        if isinstance(self._site, Cluster) or self._now:
            return None
        parts = parts_of(asks)
        calls = [self._calls.packed(key, words([asks[place] for place in mine])) for key, mine in parts]
        trip = Trip(partial(self._arrived, asks, parts, landed), partial(self._again, asks, parts), self._leave)
        trip.errand = self._site.node.send(b"".join(calls), len(calls), trip.landed, behind)
        return trip if trip.errand else None

    def _arrived(
        self, asks: Sequence[Ask], parts: Sequence[Part], landed: Landed, got: "list[Any] | Exception"
    ) -> None:
        if isinstance(got, BackendError):
            self._missed(got)
            landed(got)
        elif isinstance(got, list):
            landed(self._assemble(asks, parts, got))

    async def _again(self, asks: Sequence[Ask], parts: Sequence[Part], got: list[Any]) -> list[Any]:
        """Ask once more for what the server did not do: it had no script, or is no primary any more."""
        code = self._driver.code
        refused = [place for place, answer in enumerate(got) if isinstance(answer, Exception)]
        undone = [place for place in refused if code(got[place]) in ("NOSCRIPT", "READONLY")]
        calls = [self._calls.call(parts[place][0], words([asks[one] for one in parts[place][1]])) for place in undone]
        for place, answer in zip(undone, await self._site.run(calls) if calls else (), strict=True):
            got[place] = answer
        return got

    def _assemble(self, asks: Sequence[Ask], parts: Sequence[Part], got: Sequence[Any]) -> Sequence[Answer]:
        if len(parts) == 1:
            return self._understand(parts[0][0], len(asks), got[0])
        answers: list[Answer | None] = [None] * len(asks)
        for (key, mine), answer in zip(parts, got, strict=True):
            for place, reply in zip(mine, self._understand(key, len(mine), answer), strict=True):
                answers[place] = reply
        return [answer for answer in answers if answer is not None]

    async def peek(self, key: str) -> Snapshot:
        """Read one state and the server's clock."""
        (answer,) = await self._site.run([self._calls.call(key, LOOK)])
        if isinstance(answer, Exception):
            raise self._problem(answer)
        return snapshot(answer)

    async def keys(self, prefix: str) -> AsyncIterator[str]:
        """Every key kept. A key that is kept all along is found; one that comes or goes meanwhile may be."""
        pattern = re.sub(r"([*?\[\]\\^])", r"\\\1", self._prefix + prefix) + "*"
        seen: set[bytes] = set()
        for node in await self._site.nodes():
            cursor: Word = 0
            while True:
                (page,) = await node.exchange([("SCAN", cursor, "MATCH", pattern, "COUNT", 1_000, "TYPE", "hash")])
                if isinstance(page, Exception):
                    raise self._problem(page)
                cursor, found = page
                fresh = [key for key in found if key not in seen]
                seen.update(fresh)
                kept = await node.exchange([("HMGET", key, "v", "state") for key in fresh]) if fresh else []
                for key, fields in zip(fresh, kept, strict=True):
                    # Only locks are ours, and of a name that was dropped only the fence is left.
                    if isinstance(fields, list) and touched(*cast("list[bytes | None]", fields)):
                        yield key.decode().removeprefix(self._prefix)
                if cursor == b"0":
                    break

    async def listen(self, woken: Woken) -> None:
        """Report wakes for this store's seats until cancelled.

        Raises `BackendError` if the server forbids it, or forbids us to wake others: then they cannot wake us either.
        """

        def heard(wake: Wake | None) -> None:
            # News of our own doing need no server, but before the first "everybody" nobody is listening yet.
            self._woken = woken
            woken(wake)

        try:
            await first_of(self._ears.listen(heard), self._mute.wait())
        finally:
            self._woken = None
        raise BackendError(f"the {self._driver.name} server does not let us publish to {self._calls.speaks(0)}*")

    async def vacate(self) -> int:
        """Bury what is dead."""
        changed = 0
        async for page in self._pages():
            answers = await self.apply([Ask(key, Vacate(), CLAIM) for key in page])
            changed += sum(isinstance(answer, Reply) and answer.verdict is Verdict.GRANTED for answer in answers)
        return changed

    async def purge(self, idle: float) -> int:
        """Drop idle names. On a cluster each keeps its fence, a few bytes; elsewhere one floor remembers for all."""
        gone = 0
        async for page in self._pages():
            answers = await self._site.run([self._calls.call(key, drop(int(idle * 1000))) for key in page])
            for key, answer in zip(page, answers, strict=True):
                (reply,) = self._understand(key, 1, answer)
                gone += isinstance(reply, Reply) and reply.verdict is Verdict.GRANTED
        return gone

    async def _pages(self) -> AsyncIterator[list[str]]:
        page: list[str] = []
        async for key in self.keys(""):
            page.append(key)
            if len(page) == _PAGE:
                yield page
                page = []
        if page:
            yield page

    async def _cover(self, asks: Sequence[Ask]) -> None:
        slots = {
            slot_of(self._prefix + ask.key) for ask in asks if isinstance(ask.command, Acquire) and ask.command.seat
        }
        if slots:
            await asyncio.gather(*(self._ears.cover(slot) for slot in slots))

    def _understand(self, key: str, count: int, answer: Any) -> Sequence[Answer]:
        if isinstance(answer, Exception):
            problem = self._problem(answer)
            self._missed(problem)
            return [problem] * count
        read, unheard, version = answered(answer)
        if version:
            return [newer(key, version)] * count
        if unheard:
            self._mute.set()
        if self._woken:
            for reply in read:
                for seat, after in reply.wakes:
                    if seat.startswith(self._seat):
                        asyncio.get_running_loop().call_soon(self._woken, Wake(key, seat, after))
        return read

    def _problem(self, error: Exception) -> BackendError:
        if isinstance(error, BackendError):
            return error
        problem = BackendError(f"the {self._driver.name} server refused: {error}")
        problem.sent = self._driver.code(error) not in REFUSALS
        problem.__cause__ = error
        return problem

    def _missed(self, error: BackendError) -> None:
        """A reply is lost, and perhaps the news for us that was in it."""
        if self._woken and error.sent:
            asyncio.get_running_loop().call_soon(self._woken, None)
