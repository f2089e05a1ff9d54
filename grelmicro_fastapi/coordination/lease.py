"""One delivered grant, as this process sees it. Guards are what callers hold of it."""

import asyncio
import weakref
from functools import partial
from typing import NamedTuple, Protocol

from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.coordination.courier import OPERATION, Courier, judge
from grelmicro_fastapi.coordination.futures import settle, within
from grelmicro_fastapi.coordination.identity import Owner
from grelmicro_fastapi.coordination.state import Downgrade, Mode, Poison, Release, Renew, Verdict
from grelmicro_fastapi.coordination.store import Answer, Ask
from grelmicro_fastapi.coordination.waiting import Waiting
from grelmicro_fastapi.coordination.wish import Grant, Wish, trusted_until
from grelmicro_fastapi.errors import BackendError, LockNotOwnedError

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

    def keep(self, grip: Grip) -> None:
        """Renew the lease, if that was asked for."""


class Lease:
    """A lease and its local deadline, which always lies before the end that the store knows.

    `holders` are the tasks that hold it, each with the object it went through: the one that acquired it, and
    children that joined. `limit` is when it ends at the latest, and a `final` one is not
    renewed any more.
    """

    __slots__ = (
        "_answer",
        "_doubtful",
        "_leaving",
        "cancelled",
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
        self.cancelled: asyncio.Task[object] | None = None
        self.watchers: list[asyncio.Future[None]] = []
        self._answer: Answer | None = None
        self._leaving = False
        self._doubtful = False

    @property
    def valid(self) -> bool:
        """Nobody else can hold the lock as long as this is true."""
        return not self.spent and not self.lost and self.crew.clock.now() < self.deadline

    def lose(self) -> None:
        """It may have ended: tell everybody who watches."""
        self.lost = True
        self._tell()

    def extended(self, asked: float) -> None:
        """The store confirmed a renewal that was asked for at that time."""
        self.confirmed = max(self.confirmed, asked)
        self.deadline = min(max(self.deadline, trusted_until(self.wish, asked)), self.limit)

    async def extend(self) -> None:
        """Renew now. Raises `LockNotOwnedError` if it has ended, `BackendError` if the store does not say."""
        if not self.valid:
            raise self.gone()
        asked = self.crew.clock.now()
        command = Renew(self.token, self.wish.ttl)
        reply = await self.crew.courier.ask(
            self.wish.key, command, min(self.deadline - asked, OPERATION), lane=RENEWALS
        )
        if reply.verdict is not Verdict.GRANTED:
            self.lose()
            raise self.gone()
        self.extended(asked)
        if not self.valid:
            raise self.gone()

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
            raise
        if reply.verdict is not Verdict.GRANTED:
            self.lost = True
            raise self.gone()
        reader = Lease(self.crew, wish, Grant(self.token, asked, reply), self.holders[0], self.limit)
        self.crew.took(reader)
        return reader

    async def release(self, poison: Poison) -> None:
        """Give it back. Quiet if the store took it, also the second time.

        Raises `LockNotOwnedError` if it had ended before, `BackendError` if the store does not say: then the release
        goes on in the background until the lease has ended, and may be called again.
        """
        answer = self._answer
        if answer is None or isinstance(answer, BackendError):
            answer = self._send_release(poison) or await self._released()
        reply = judge(answer)
        # After a release whose answer was lost, "gone" is what its success looks like.
        if reply.verdict is not Verdict.GRANTED and not self._doubtful:
            raise self.gone()

    def gone(self) -> LockNotOwnedError:
        """Say that this lease is no proof any more."""
        name = self.wish.name
        if self.spent and not self.lost:
            return LockNotOwnedError(f"the guard of {name!r} was released: acquire again")
        return LockNotOwnedError(f"the lease of {name!r} has ended: somebody else may hold it, acquire again")

    def uncancel(self) -> bool:
        """Was the running task cancelled because of this loss, and for nothing else?"""
        task, self.cancelled = self.cancelled, None
        return asyncio.current_task() is task and task is not None and task.uncancel() == 0

    def retire(self) -> None:
        """Spend it: from here on it proves nothing, is not renewed, and does not count for nesting."""
        if not self.spent:
            self.lost = self.lost or self.crew.clock.now() >= self.deadline
            self.spent = True
            self.crew.left(self)
            self._tell()

    def _send_release(self, poison: Poison) -> Answer | None:
        self.retire()
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
        self._tell()

    async def _released(self) -> Answer:
        """Wait for the answer without owning it: cancelling this caller takes nothing back."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.watchers.append(done)
        await within(self.crew.clock, OPERATION, done)
        return self._answer or BackendError(f"no answer to the release of {self.wish.name!r} within {OPERATION:g} s")

    def _tell(self) -> None:
        for watcher in self.watchers:
            settle(watcher, None)
        self.watchers.clear()
