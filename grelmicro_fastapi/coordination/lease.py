"""One delivered grant, as this process sees it. Guards are what callers hold of it."""

import asyncio
import logging
import weakref
from functools import partial
from typing import NamedTuple, Protocol

from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.coordination.courier import Courier, judge
from grelmicro_fastapi.coordination.futures import settle, within
from grelmicro_fastapi.coordination.identity import Owner, owner
from grelmicro_fastapi.coordination.lane import OPERATION, silence
from grelmicro_fastapi.coordination.state import Downgrade, Mode, Poison, Release, Renew, Reply, Verdict
from grelmicro_fastapi.coordination.store import Answer, Ask
from grelmicro_fastapi.coordination.waiting import Waiting
from grelmicro_fastapi.coordination.wish import Grant, Wish, trusted_until
from grelmicro_fastapi.errors import BackendError, LockNotOwnedError

_log = logging.getLogger("grelmicro_fastapi.coordination")

RENEWALS = "renewals"
"""The lane of its own that keeps renewals apart from everything else."""


class Holder(NamedTuple):
    """A task or thread, and the object through which it took a lease."""

    owner: Owner
    source: object


class Grip:
    """What all guards of one lease hold together. When it is gone, nobody can use the lease, and it is not renewed."""

    __slots__ = ("__weakref__", "lease")

    def __init__(self, lease: "Lease") -> None:
        self.lease = lease
        lease.grip = weakref.ref(self)


class Serves(Protocol):
    """What a lease needs of the crew that took it."""

    clock: Clock
    courier: Courier
    waiting: Waiting

    def took(self, lease: "Lease") -> None:
        """Count a lease as held here."""

    def left(self, lease: "Lease") -> None:
        """Count it no more."""

    def joined(self, lease: "Lease", holder: Holder) -> None:
        """Count one more holder of a lease."""

    def parted(self, lease: "Lease", holder: Holder) -> None:
        """Count one holder less."""

    def keep(self, grip: Grip) -> None:
        """Renew the lease, if that was asked for."""


class Lease:
    """A lease and its local deadline, which always lies before the end that the store knows.

    `holders` are the tasks that hold it, each with the object it went through: the one that acquired it, and
    children that joined. `limit` is when it ends at the latest, and a `final` one is not renewed any more.
    """

    __slots__ = (
        "_answer",
        "_calm",
        "_cancelled",
        "_doubtful",
        "_leaving",
        "confirmed",
        "crew",
        "deadline",
        "due",
        "fence",
        "final",
        "grip",
        "holders",
        "limit",
        "lost",
        "poisoned",
        "spent",
        "token",
        "watchers",
        "wish",
    )

    def __init__(self, crew: Serves, wish: Wish, grant: Grant, holder: Holder, limit: float) -> None:
        self.crew = crew
        self.wish = wish
        self.token = grant.token
        self.fence = grant.reply.fence
        self.poisoned = grant.reply.poisoned
        self.limit = limit
        self.confirmed = grant.asked
        self.deadline = min(trusted_until(wish, grant.asked), limit)
        self.holders: list[Holder] = [holder]
        self.grip: weakref.ref[Grip] | None = None
        self.due = 0.0
        self.final = False
        self.lost = False
        self.spent = False
        self.watchers: list[asyncio.Future[None]] = []
        self._answer: Answer | None = None
        self._leaving = False
        self._doubtful = False
        self._cancelled: asyncio.Task[object] | None = None
        # How often the owner had been cancelled before, by somebody whose cancellation it did not heed.
        self._calm = holder.owner.cancelling() if wish.cancels and isinstance(holder.owner, asyncio.Task) else 0

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
        task = self.holders[0].owner if self.holders else None
        # Who learns of it by this very call needs no cancellation.
        if self.wish.cancels and isinstance(task, asyncio.Task) and task is not owner():
            self._cancelled = task
            task.cancel(f"the lock {name!r} was lost")

    def extended(self, asked: float) -> None:
        """The store confirmed a renewal that was asked for at that time."""
        self.confirmed = max(self.confirmed, asked)
        self.deadline = min(max(self.deadline, trusted_until(self.wish, asked)), self.limit)

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
        wish = self.wish._replace(mode=Mode.READ)
        asked = self.crew.clock.now()
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
        reader = Lease(self.crew, wish, Grant(self.token, asked, reply), self.holders[0], self.limit)
        if not reader.valid:
            self.crew.courier.undo(wish.key, self.token, wish.lease)
            self.lost = True
            raise self.gone()
        self.crew.took(reader)
        return reader

    async def release(self, poison: Poison) -> None:
        """Give it back. Quiet if the store took it, also the second time.

        Raises `LockNotOwnedError` if it had ended before, `BackendError` if the store does not say: then the release
        goes on in the background until the lease has ended, and may be called again.
        """
        self.retire()
        answer = self._answer
        if answer is None or isinstance(answer, BackendError):
            answer = self._send_release(poison) or await self._released()
        reply = judge(answer)
        # After a release whose answer was lost, "gone" is what its success looks like.
        if reply.verdict is not Verdict.GRANTED and (self.lost or not self._doubtful):
            self.lost = True
            raise self.gone()

    def gone(self) -> LockNotOwnedError:
        """Say that this lease is no proof any more."""
        name = self.wish.name
        if self.spent and not self.lost:
            return LockNotOwnedError(f"the guard of {name!r} was released: acquire again")
        return LockNotOwnedError(f"the lease of {name!r} has ended: somebody else may hold it, acquire again")

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
            self.crew.left(self)
            self.tell()

    def _send_release(self, poison: Poison) -> Answer | None:
        crew, key = self.crew, self.wish.key
        courier, command = crew.courier, Release(self.token, round(self.wish.min_hold * 1000), poison)
        if courier.at_once:
            self._answer = courier.at_once(Ask(key, command, courier.pace.claim))
        elif not self._leaving:
            self._answer, self._leaving = None, True
            courier.post(key, command, partial(self._left, command))
        crew.waiting.released(key)
        return self._answer

    def _left(self, command: Release, answer: Answer) -> None:
        self._answer, self._leaving = answer, False
        left = self.deadline - self.crew.clock.now()
        if isinstance(answer, BackendError) and left > 0 and not self._doubtful:
            self.crew.courier.insist(self.wish.key, command, left)
        self._doubtful = self._doubtful or isinstance(answer, BackendError)
        self.tell()

    async def _released(self) -> Answer:
        """Wait for the answer without owning it: cancelling this caller takes nothing back."""
        clock = self.crew.clock
        until = clock.now() + OPERATION
        while self._answer is None and clock.now() < until:
            answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.watchers.append(answered)
            await within(clock, until - clock.now(), answered)
        return self._answer or silence(OPERATION)

    def tell(self) -> None:
        """Let everybody who watches look again."""
        for watcher in self.watchers:
            settle(watcher, None)
        self.watchers.clear()
