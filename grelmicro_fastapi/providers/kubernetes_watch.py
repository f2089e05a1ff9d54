"""Who waits in this process, and the one watch by which they hear that it is worth asking again."""

import asyncio
import random
from collections.abc import Callable

from grelmicro_fastapi.coordination.state import Acquire, Leave, Mode, Reply, Verdict
from grelmicro_fastapi.coordination.store import Ask, Wake, Woken
from grelmicro_fastapi.coordination.turns import outlook
from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers.kubernetes_api import LeaseApi
from grelmicro_fastapi.providers.kubernetes_errors import ExpiredError, ForbiddenError
from grelmicro_fastapi.providers.kubernetes_names import Lease, Names, part
from grelmicro_fastapi.providers.kubernetes_sights import Sight, Sights

_SECONDS = 240.0
"""How long one watch lasts, before it is begun anew where it ended."""
_SOON = 5_000
"""Nobody sleeps longer than so many ms anyway, so later alarms need not be told."""


class _Waiter:
    """One seat of ours. `told` says that it is going to ask anyway."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.told = False


class Waiters:
    """The seats of one store that wait."""

    def __init__(self, channel: str, now: Callable[[], int]) -> None:
        self._channel = channel
        self._now = now
        self._waiting: dict[str, dict[str, _Waiter]] = {}
        self.woken: Woken | None = None

    def note(self, ask: Ask, reply: Reply) -> None:
        """Learn from an answer who waits and who does not."""
        match ask.command:
            case Acquire(mode=mode, seat=seat) if seat.rpartition("/")[0] == self._channel:
                if reply.verdict is Verdict.HELD or reply.seated:
                    self._waiting.setdefault(ask.key, {})[seat] = _Waiter(mode)
                else:
                    self._forget(ask.key, seat)
            case Leave(seat):
                self._forget(ask.key, seat)
            case _:
                pass

    def look(self, sight: Sight) -> None:
        """Tell our seats of that key which may have a chance now, and when those that soon may."""
        woken, waiting = self.woken, self._waiting.get(sight.key)
        if not woken or not waiting or sight.lease is None:
            return
        now = self._now()
        state = sight.state(now)
        loop = asyncio.get_running_loop()
        for seat, waiter in waiting.items():
            left = outlook(state, seat, waiter.mode, now)
            if left <= _SOON and not (waiter.told and not left):
                loop.call_soon(woken, Wake(sight.key, seat, left))
            waiter.told = not left

    def _forget(self, key: str, seat: str) -> None:
        waiting = self._waiting.get(key)
        if waiting and waiting.pop(seat, None) and not waiting:
            del self._waiting[key]


class Watch:
    """Follows all Leases of one application."""

    def __init__(self, api: LeaseApi, names: Names, sights: Sights, waiters: Waiters) -> None:
        self._api = api
        self._names = names
        self._sights = sights
        self._waiters = waiters

    async def run(self, woken: Woken) -> None:
        """Report wakes until cancelled. Raises `BackendError` only if we may not watch."""
        pause = 0.05
        self._waiters.woken = woken
        try:
            while True:
                try:
                    version = await self._begin(woken)
                    pause = 0.05
                    while True:
                        version = await self._follow(version)
                except ForbiddenError:
                    raise
                except ExpiredError:
                    pass
                except BackendError:
                    pause = min(2 * pause, 5.0)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        finally:
            self._waiters.woken = None

    async def _begin(self, woken: Woken) -> str:
        """Read everything. What happened before, nobody told us."""
        leases, version = await self._api.list(self._names.selector)
        for lease in leases:
            self._saw(lease)
        woken(None)
        return version

    async def _follow(self, version: str) -> str:
        """Follow what changes until the API server ends it, and return how far we came."""
        seconds = _SECONDS * random.uniform(1.0, 1.25)
        async for kind, lease in self._api.watch(self._names.selector, version, seconds):
            version = str(part(lease, "metadata").get("resourceVersion") or version)
            if kind in ("ADDED", "MODIFIED"):
                self._saw(lease)
        return version

    def _saw(self, lease: Lease) -> None:
        if (key := self._names.key(lease)) is not None and (sight := self._sights.saw(key, lease)):
            self._waiters.look(sight)
