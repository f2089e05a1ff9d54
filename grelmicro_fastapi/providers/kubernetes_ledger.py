"""Reads and changes Leases. The law runs here, on a state rebuilt from the Lease, and the API server sees to it that
whoever writes has seen the last version: that makes each step atomic."""

import asyncio
import copy
import itertools
import random
from collections.abc import Callable, Sequence

from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.coordination.names import LEADER
from grelmicro_fastapi.coordination.rules import step
from grelmicro_fastapi.coordination.state import VERSION, Acquire, State
from grelmicro_fastapi.coordination.store import Answer, Ask
from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers.base import newer
from grelmicro_fastapi.providers.kubernetes_api import LeaseApi
from grelmicro_fastapi.providers.kubernetes_errors import ConflictError, DoubtError, certain
from grelmicro_fastapi.providers.kubernetes_floor import STAYS, Floor
from grelmicro_fastapi.providers.kubernetes_names import DROPPED, RECORD, Lease, Names, annotations
from grelmicro_fastapi.providers.kubernetes_record import blank, save, stamp_of, tombstone
from grelmicro_fastapi.providers.kubernetes_sights import Sight, Sights

_TRIES = 100
_DOUBTS = 3
_BUDGET = 5.0
"""Seconds for all the tries of one change."""


class _Attempts:
    """What was tried to make one change, and the answers that each write would have meant.

    `doubts` counts the writes that may be made still. `unclear` says that one may have been made already.
    """

    def __init__(self) -> None:
        self.made: dict[str, Sequence[Answer]] = {}
        self.doubts = 0
        self.unclear = False


class Ledger:
    """The Leases of one application. `author` signs what is written here, and `now` is our clock in ms."""

    def __init__(self, api: LeaseApi, names: Names, clock: Clock, author: str, now: Callable[[], int]) -> None:
        self.floor = Floor(api, names, now)
        self.sights = Sights(now)
        self._api = api
        self._names = names
        self._clock = clock
        self._now = now
        self._author = author
        self._writes = itertools.count(1)

    async def change(self, sight: Sight, asks: Sequence[Ask]) -> Sequence[Answer]:
        """Read, step and write until nobody comes in between. Raises `BackendError`, which concerns all asks."""
        attempts = _Attempts()
        try:
            return await self._change(sight, [_standing(ask) for ask in asks], attempts)
        except BackendError as error:
            if attempts.unclear and not isinstance(error, DoubtError):
                raise DoubtError(str(error)) from error
            raise

    async def _change(self, sight: Sight, asks: Sequence[Ask], attempts: _Attempts) -> Sequence[Answer]:
        time = asyncio.get_running_loop().time
        ends = time() + _BUDGET
        looked = False
        for number in range(_TRIES):
            if sight.lease is None:
                await self.look(sight)
                looked = True
            lease = sight.lease
            if lease and (landed := attempts.made.get(stamp_of(lease))):
                return landed
            state = await self.state(sight)
            now = self._now()
            before = copy.deepcopy(state)
            answers = [_answer(ask, state, now) for ask in asks]
            if state.version > VERSION or (state == before and not attempts.doubts):
                if looked:
                    return answers
                # What no write confirms must have been looked at.
                sight.doubt(lease)
                continue
            stamp = f"{self._author}.{next(self._writes)}"
            attempts.made[stamp] = answers
            try:
                await self._write(sight, lease, state, now, stamp)
            except ConflictError:
                # Perhaps with ourselves: HTTP clients send a request again if its connection breaks.
                attempts.unclear = True
            except DoubtError:
                # It may be written now, or later. Once a write of ours on the same version has succeeded, it cannot.
                attempts.unclear = True
                attempts.doubts += 1
                if attempts.doubts >= _DOUBTS:
                    raise
            else:
                return answers
            sight.doubt(lease)
            if time() > ends:
                break
            await asyncio.sleep(random.uniform(0, min(0.005 * number, 0.1)))
        raise certain(f"others kept changing the Lease of {sight.key!r}")

    async def look(self, sight: Sight) -> None:
        """Read the Lease of a key. It counts as seen when its answer is here, not when it was asked for."""
        lease = await self._api.get(self._names.lease(sight.key))
        if lease is None:
            sight.lease = None
            return
        self._names.verify(sight.key, lease)
        sight.saw(lease, self._now())

    async def state(self, sight: Sight) -> State:
        """The state of a key that was looked at."""
        floor = 0 if sight.lease else await self.floor.fence()
        state = sight.state(self._now())
        state.fence = max(state.fence, floor)
        return state

    async def all(self) -> list[Sight]:
        """Look at every key that is kept. Leases of names that were purged long ago are deleted on the way."""
        leases, _ = await self._api.list(self._names.selector)
        found: list[Sight] = []
        for lease in leases:
            key = self._names.key(lease)
            if key is None or self._names.lease(key) != lease["metadata"]["name"]:
                continue
            if RECORD not in annotations(lease):
                await self._bury(lease)
            elif sight := self.sights.saw(key, lease):
                found.append(sight)
        return found

    async def drop(self, sight: Sight, lease: Lease, fence: int) -> bool:
        """Drop a name whose Lease is still this one. Its fence stays for a day, and the floor is to be above it."""
        try:
            left = await self._api.replace(tombstone(lease, fence, self._clock.wall()))
        except BackendError:
            # Somebody has come back to it, or it is dropped next time.
            sight.doubt(lease)
            return False
        sight.keep(left, State(fence), {})
        return True

    async def _write(self, sight: Sight, lease: Lease | None, state: State, now: int, stamp: str) -> None:
        names, key = self._names, sight.key
        base = lease or blank(names.lease(key), names.labels, names.full(key))
        seen = sight.seen if lease else {}
        changed, seen = save(key, base, state, seen, now, stamp, self._clock.wall())
        try:
            written = await (self._api.replace(changed) if lease else self._api.create(changed))
        except asyncio.CancelledError:
            sight.doubt(lease)
            raise
        sight.keep(written, state, seen)

    async def _bury(self, lease: Lease) -> None:
        dropped = annotations(lease).get(DROPPED, "")
        if dropped.isdecimal() and int(dropped) + STAYS <= self._clock.wall() * 1000:
            try:
                await self._api.delete(lease)
            except ConflictError:
                # Somebody has come back to it.
                return


def _answer(ask: Ask, state: State, now: int) -> Answer:
    reply = step(state, ask.command, now, ask.claim)
    return newer(ask.key, state.version) if state.version > VERSION else reply


def _standing(ask: Ask) -> Ask:
    """Candidates of an election take no seats: they only look, and the fleet does not write to one Lease all day."""
    if isinstance(ask.command, Acquire) and ask.key.startswith(LEADER):
        return ask._replace(command=ask.command._replace(seat="", more=False))
    return ask
