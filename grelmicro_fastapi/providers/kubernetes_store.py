"""States in Leases, one for each key."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Hashable, Sequence

from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.coordination.rules import step
from grelmicro_fastapi.coordination.state import CLAIM, Purge, Reply, Vacate, Verdict
from grelmicro_fastapi.coordination.store import Answer, Ask, Scope, Snapshot, Woken
from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers.kubernetes_api import LeaseApi
from grelmicro_fastapi.providers.kubernetes_ledger import Ledger
from grelmicro_fastapi.providers.kubernetes_line import Line
from grelmicro_fastapi.providers.kubernetes_names import Lease, Names
from grelmicro_fastapi.providers.kubernetes_sights import Sight
from grelmicro_fastapi.providers.kubernetes_watch import Waiters, Watch


class KubernetesStore:
    """One loop's view of the Leases of one application. `now` is for tests: the time in ms, in place of the clock's."""

    scope = Scope.CLUSTER
    place = 15.0

    def __init__(
        self, line: Line, prefix: str, clock: Clock, *, timeout: float = 2.0, now: Callable[[], int] | None = None
    ) -> None:
        self.channel = secrets.token_hex(8)
        self._clock = clock
        self._ahead = clock.wall() - clock.now()
        self._now = now or self._boot_time
        self._line = line
        self._names = Names(prefix)
        self._api = LeaseApi(line, timeout)
        self._ledger = Ledger(self._api, self._names, clock, self.channel, self._now)
        self._waiters = Waiters(self.channel, self._now)

    @property
    def calls(self) -> int:
        """Requests sent to the API server so far."""
        return self._api.calls

    async def open(self) -> None:
        """Find the API server, and read the floor of fences from it."""
        await self._line.open()
        await self._ledger.floor.look()

    async def close(self) -> None:
        """Close every connection."""
        await self._line.close()

    def lane(self, key: str) -> Hashable:
        """Keys have nothing in common: what concerns one of them travels together."""
        return key

    async def apply(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        """Let the law advance each key: in one call where its Lease is known, in two where not."""
        numbers: dict[str, list[int]] = {}
        for number, ask in enumerate(asks):
            numbers.setdefault(ask.key, []).append(number)
        changes = [self._change([asks[number] for number in of_key]) for of_key in numbers.values()]
        answers: dict[int, Answer] = {}
        for of_key, found in zip(numbers.values(), await asyncio.gather(*changes), strict=True):
            answers |= zip(of_key, found, strict=True)
        return [answers[number] for number in range(len(asks))]

    async def peek(self, key: str) -> Snapshot:
        """Read one state, in one call."""
        sight = self._ledger.sights.of(key)
        await self._ledger.look(sight)
        return Snapshot(await self._ledger.state(sight), self._now())

    async def keys(self, prefix: str) -> AsyncIterator[str]:
        """Every key kept that starts with `prefix`."""
        for sight in await self._ledger.all():
            if sight.key.startswith(prefix):
                yield sight.key

    async def listen(self, woken: Woken) -> None:
        """Report wakes for this store's seats until cancelled; raises `BackendError` if we may not watch Leases."""
        await Watch(self._api, self._names, self._ledger.sights, self._waiters).run(woken)

    async def vacate(self) -> int:
        """Bury what this process has seen die."""
        now = self._now()
        dead = [
            sight.key for sight in await self._ledger.all() if _granted(step(sight.state(now), Vacate(), now, CLAIM))
        ]
        return sum(map(_granted, await self.apply([Ask(key, Vacate(), CLAIM) for key in dead])))

    async def purge(self, idle: float) -> int:
        """Drop names idle for so many seconds. Of each, its fence stays for a day."""
        now, ask = self._now(), Purge(int(idle * 1000))
        idling: list[tuple[Sight, Lease, int]] = []
        for sight in await self._ledger.all():
            lease, state = sight.lease, sight.state(now)
            if lease and _granted(step(state, ask, now, CLAIM)):
                idling.append((sight, lease, state.fence))
        if idling:
            await self._ledger.floor.rise(max(fence for *_, fence in idling))
        return sum([await self._ledger.drop(*idle) for idle in idling])

    async def _change(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        sight = self._ledger.sights.of(asks[0].key)
        try:
            answers = await self._ledger.change(sight, asks)
        except BackendError as error:
            return [error] * len(asks)
        for ask, answer in zip(asks, answers, strict=True):
            if isinstance(answer, Reply):
                self._waiters.note(ask, answer)
        self._waiters.look(sight)
        return answers

    def _boot_time(self) -> int:
        return int((self._clock.now() + self._ahead) * 1000)


def _granted(answer: Answer) -> bool:
    return isinstance(answer, Reply) and answer.verdict is Verdict.GRANTED
