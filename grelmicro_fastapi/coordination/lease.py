"""One delivered grant, as this process sees it. Guards are what callers hold of it."""

import asyncio
import logging
import math
import weakref
from dataclasses import replace
from functools import partial
from typing import Protocol

from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.coordination.courier import Courier, judge
from grelmicro_fastapi.coordination.futures import settle, within
from grelmicro_fastapi.coordination.holder import Grip, Hold, Holder
from grelmicro_fastapi.coordination.identity import Owner, owner
from grelmicro_fastapi.coordination.parcel import OPERATION, RENEWALS, silence
from grelmicro_fastapi.coordination.state import Downgrade, Mode, Poison, Release, Renew, Reply, Verdict, made_release
from grelmicro_fastapi.coordination.store import Answer, DirectStore
from grelmicro_fastapi.coordination.uncontended import LEFT, Found
from grelmicro_fastapi.coordination.waiting import Waiting
from grelmicro_fastapi.coordination.wish import Wish
from grelmicro_fastapi.errors import BackendError, LockNotOwnedError

_log = logging.getLogger("grelmicro_fastapi.coordination")


class Serves(Protocol):
    """What a lease needs of the crew that took it."""

    direct: DirectStore | None
    clock: Clock
    courier: Courier
    waiting: Waiting

    def took(self, lease: "Lease") -> None:
        """Count a lease as held here."""

    def parted(self, lease: "Lease", holder: Holder) -> bool:
        """Count one holder less. Does nobody hold it any more?"""
        ...

    def forgot(self, lease: "Lease") -> None:
        """It is over, though nobody has given it back."""

    def keep(self, lease: "Lease") -> Grip | None:
        """Renew the lease, if that was asked for."""


class Lease(Hold):
    """A lease and its local deadline, which always lies before the end that the store knows.

    `limit` is when it ends at the latest, `due` when the keeper looks at it, and a `final` one is not renewed any more.
    """

    # Most leases are short and uneventful, so what rarely changes is set when it does.
    grip: "weakref.ref[Grip] | None" = None
    home: object = None
    due = 0.0
    limit = math.inf
    final = False
    lost = False
    watchers: tuple["asyncio.Future[None]", ...] = ()
    _leaving = False
    _doubtful = False
    _cancelled: "asyncio.Task[object] | None" = None
    _calm = 0

    def __init__(
        self, crew: Serves, wish: Wish, token: str, asked: float, found: Found, who: Owner, source: object
    ) -> None:
        self.owner, self.source = who, source
        self.crew, self.wish, self.token = crew, wish, token
        self.fence, self.poisoned = found
        self.confirmed, self.spent = asked, False
        self._answer: Answer | None = None
        self.deadline = asked + wish.trusted
        if wish.max_hold is not None:
            self.limit = asked + wish.max_hold
            self.deadline = min(self.deadline, self.limit)
        if wish.cancels and isinstance(who, asyncio.Task):
            # How often the owner had been cancelled before, by somebody whose cancellation it did not heed.
            self._calm = who.cancelling()

    @property
    def valid(self) -> bool:
        """Nobody else can hold the lock as long as this is true."""
        return not self.spent and not self.lost and self.crew.clock.now() < self.deadline

    def lose(self, why: str, reply: Reply | None = None) -> None:
        """It has ended, or may have: tell everybody who watches, and cancel the owner if that was asked for.

        With the store's `reply` that it is gone, there is nothing left to release.
        """
        if self.lost or self.spent:
            return
        name = self.wish.name
        _log.error("lost %r: %s", name, why, extra={"lock_name": name, "event": "lock.lost"})
        self.lost, self._answer = True, reply
        self.tell()
        task = next((holder.owner for holder in self.holders), None)
        # Who learns of it by this very call needs no cancellation.
        if self.wish.cancels and isinstance(task, asyncio.Task) and task is not owner():
            self._cancelled = task
            task.cancel(f"the lock {name!r} was lost")

    def extended(self, asked: float) -> None:
        """The store confirmed a renewal that was asked for at that time."""
        self.confirmed = max(self.confirmed, asked)
        self.deadline = min(max(self.deadline, asked + self.wish.trusted), self.limit)

    async def extend(self) -> None:
        """Renew now. Raises `LockNotOwnedError` if it has ended, `BackendError` if the store does not say."""
        if not self.valid:
            raise self.gone()
        asked = self.crew.clock.now()
        bound = min(self.deadline - asked, OPERATION)
        reply = await self.crew.courier.ask(self.wish.key, Renew(self.token, self.ttl(asked)), bound, lane=RENEWALS)
        if reply.verdict is Verdict.GRANTED:
            self.extended(asked)
        else:
            self.lose("the store says that its lease has ended", reply)
        if not self.valid:
            raise self.gone()

    def ttl(self, asked: float) -> int:
        """For how long, in ms, to renew at that time: not past the longest hold, so that others enter then."""
        rest = (self.limit - asked) * 1.02 + 0.005
        return self.wish.ttl if rest >= self.wish.lease else round(rest * 1000)

    async def downgrade(self) -> "Lease":
        """Make this write lease a read lease under the same fence, without a gap. This one is spent at once."""
        if not self.valid:
            raise self.gone()
        self.retire()
        wish, asked = replace(self.wish, mode=Mode.READ), self.crew.clock.now()
        try:
            command = Downgrade(self.token, wish.ttl)
            reply = await self.crew.courier.ask(wish.key, command, min(OPERATION, self.deadline - asked))
        except BaseException:
            # Nobody knows whether it is a reader now: take back whatever it is.
            self.crew.courier.undo(wish.key, self.token, wish.lease)
            self.crew.waiting.released(wish.key)
            raise
        if reply.verdict is not Verdict.GRANTED:
            self.lost = True
            raise self.gone()
        reader = Lease(self.crew, wish, self.token, asked, (reply.fence, reply.poisoned), self.owner, self.source)
        reader.limit, reader.deadline = self.limit, min(reader.deadline, self.limit)
        if not reader.valid:
            self.crew.courier.undo(wish.key, self.token, wish.lease)
            self.lost = True
            raise self.gone()
        self.crew.took(reader)
        return reader

    def release_at_once(self, poison: Poison) -> bool:
        """Give it back where the store is in our memory. Otherwise, or if it was not held any more: False."""
        crew, wish, direct = self.crew, self.wish, self.crew.direct
        if direct is None or self.spent:
            return False
        self.spent = True
        if self.watchers:
            self.tell()
        if poison is Poison.CLEAR and not wish.min_hold_ms and direct.leave(wish.key, self.token):
            self._answer = LEFT
        else:
            command = made_release((self.token, wish.min_hold_ms, poison))
            self._answer = direct.at_once(wish.key, command, crew.courier.pace.claim)
        if crew.waiting.queues:
            crew.waiting.released(wish.key)
        return isinstance(self._answer, Reply) and self._answer.verdict is Verdict.GRANTED

    async def release(self, poison: Poison) -> None:
        """Give it back. Quiet if the store took it, also the second time.

        Raises `LockNotOwnedError` if it had ended before, `BackendError` if the store does not say: then the release
        goes on in the background until the lease has ended, and may be called again.
        """
        self.retire()
        answer = self._answer
        if answer is None or isinstance(answer, BackendError):
            answer = self._send_release(poison) or await self._released()
            if isinstance(answer, Reply) and answer.verdict is Verdict.GRANTED:
                return
        # After a release whose answer was lost, "gone" is what its success looks like.
        if judge(answer).verdict is not Verdict.GRANTED and (self.lost or not self._doubtful):
            self.lost = True
            raise self.gone()

    def gone(self) -> LockNotOwnedError:
        """Say that this lease is no proof any more."""
        if self.spent and not self.lost:
            return LockNotOwnedError(f"the guard of {self.wish.name!r} was released: acquire again")
        return LockNotOwnedError(f"the lease of {self.wish.name!r} has ended: somebody else may hold it, acquire again")

    def uncancel(self) -> bool:
        """Was the running task cancelled because of this loss, and for nothing else?"""
        cancelled, self._cancelled = self._cancelled, None
        task = asyncio.current_task() if cancelled else None
        return task is not None and task is cancelled and task.uncancel() <= self._calm

    def retire(self) -> None:
        """Spend it: from here on it proves nothing, is not renewed, and does not count for nesting."""
        if not self.spent:
            self.lost = self.lost or self.crew.clock.now() >= self.deadline
            self.spent = True
            self.tell()

    def _send_release(self, poison: Poison) -> Answer | None:
        crew, wish, courier = self.crew, self.wish, self.crew.courier
        command = made_release((self.token, wish.min_hold_ms, poison))
        if not self._leaving:
            self._answer, self._leaving = None, True
            courier.post(wish.key, command, partial(self._left, command), later=True)
        crew.waiting.released(wish.key)
        if self._leaving:
            courier.go(wish.key)
        return self._answer

    def _left(self, command: Release, answer: Answer) -> None:
        self._answer, self._leaving = answer, False
        if isinstance(answer, BackendError):
            if (left := self.deadline - self.crew.clock.now()) > 0 and not self._doubtful:
                self.crew.courier.insist(self.wish.key, command, left)
            self._doubtful = True
        self.tell()

    async def _released(self) -> Answer:
        """Wait for the answer without owning it: cancelling this caller takes nothing back."""
        until = self.crew.clock.now() + OPERATION - 0.001
        while self._answer is None and self.crew.clock.now() < until:
            watcher = self.crew.courier.patience.future()
            self.watchers += (watcher,)
            await watcher
        return self._answer or silence(OPERATION)

    def tell(self) -> None:
        """Let everybody who watches look again."""
        watchers, self.watchers = self.watchers, ()
        for watcher in watchers:
            settle(watcher, None)

    async def watch(self, seconds: float) -> None:
        """Wait until something changes, for so many seconds at the most."""
        watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.watchers += (watcher,)
        try:
            await within(self.crew.clock, seconds, watcher)
        finally:
            self.watchers = tuple(other for other in self.watchers if other is not watcher)
