"""Guards: the proof that a lock is held.

They are siblings, never subclasses of each other, so a type checker refuses one where another is due.
"""

import asyncio
from typing import ClassVar, final

from grelmicro_fastapi.coordination.holder import Grip, Holder
from grelmicro_fastapi.coordination.lease import Lease
from grelmicro_fastapi.coordination.state import Mode, Poison
from grelmicro_fastapi.errors import CoordinationError, LockNotOwnedError


class Guard:
    """The proof that a lock is held. Ownership lies in it, not in a task or a thread: whoever has it may release it."""

    mode: ClassVar[Mode]

    _grip: Grip | None = None
    _left = False
    _lost = False
    _heir: "Guard | None" = None
    """What it became by a downgrade."""

    def __init__(self, lease: Lease, holder: Holder, grip: Grip | None = None) -> None:
        self.lease = lease
        """What this is the proof of. For the library's own rooms."""
        self.holder = holder
        """Who holds it. For the library's own rooms."""
        if grip:
            self._grip = grip

    @property
    def name(self) -> str:
        """What is protected."""
        return self.lease.wish.name

    @property
    def valid(self) -> bool:
        """True as long as nobody else can hold the lock. Ends before the lease does in the store."""
        lease = self.lease
        return not self._left and lease.valid and lease.held_by(self.holder)

    @property
    def lost(self) -> bool:
        """True if the lease ended, or may have ended, before it was released."""
        lease = self.lease
        if self._left:
            return self._lost
        return lease.lost or (not lease.spent and lease.crew.clock.now() >= lease.deadline)

    @property
    def expires_in(self) -> float:
        """Seconds for which the guard is valid if it is not extended; 0.0 once it is not."""
        lease = self.lease
        return max(0.0, lease.deadline - lease.crew.clock.now()) if self.valid else 0.0

    def check(self) -> None:
        """Raise `LockNotOwnedError` unless the guard is valid. Call it before each step that must not run twice."""
        if not self.valid:
            raise self._gone()

    async def extend(self) -> None:
        """Let the lease start anew. Never shortens, and never revives.

        Raises `LockNotOwnedError` if the lease has ended, `BackendError` if the store does not say: then the guard is
        valid until its deadline.
        """
        self.check()
        await self.lease.extend()

    async def wait_lost(self) -> bool:
        """Wait until the lease is lost (True) or given back (False)."""
        lease = self.lease
        while not self.lost and not lease.spent and not self._left:
            await lease.watch(lease.deadline - lease.crew.clock.now())
        return self.lost

    async def leave(self, error: BaseException | None) -> None:
        """Release at the end of a body that raised `error`, or succeeded (None): what `async with` does.

        Quiet if the guard was released inside; after a downgrade, the guard that came of it is released. A good body
        whose lease was lost raises `LockNotOwnedError`; beside an error of the body, whatever goes wrong here is added
        to it as a note. Poison is kept unless the body succeeded.
        """
        if self._heir:
            await self._heir.leave(error)
            return
        before, poison = self._left, Poison.CLEAR if error is None else Poison.KEEP
        done = self._given_back(poison) or before
        if error is None and not self._lost:
            if not done:
                await self._give_back(poison)
            return
        gone = self._gone() if self._lost else None
        # Was the body cancelled because of this loss, and for nothing else?
        cancelled = self.lease.uncancel() and isinstance(error, asyncio.CancelledError)
        trouble: Exception | None = None
        if not done:
            try:
                await self._give_back(poison)
            except Exception as raised:
                trouble = gone or raised
        elif before and not cancelled:
            return
        if cancelled:
            raise gone or self._gone() from error
        if error is not None:
            if trouble or gone:
                error.add_note(f"and then: {trouble or gone}")
        elif trouble or gone:
            raise trouble or gone or self._gone()

    def _prove(self) -> Lease:
        self.check()
        return self.lease

    def _gone(self) -> CoordinationError:
        if self._left and not self._lost and not self.lease.spent:
            return LockNotOwnedError(f"this guard of {self.name!r} was released: acquire again")
        return self.lease.gone()

    def _given_back(self, poison: Poison) -> bool:
        """Release in this very step, where the store is in our memory. False: the rest is for `_give_back`."""
        lease, lost = self.lease, self.lost
        if self._left:
            return False
        # Whoever has left keeps nothing alive.
        self._left, self._lost, self._grip = True, lost, None
        return lease.crew.parted(lease, self.holder) and not lost and lease.release_at_once(poison)

    async def _give_back(self, poison: Poison) -> None:
        lease = self.lease
        if not lease.free:
            # Others that joined this lease go on with it.
            lease.tell()
            return
        try:
            await lease.release(poison)
        except LockNotOwnedError:
            self._lost = True
            raise

    def __repr__(self) -> str:
        state = "valid" if self.valid else "lost" if self.lost else "released"
        return f"<{type(self).__name__} {self.name!r} {state}>"


@final
class LockHandle(Guard):
    """The proof that a `Lock` is held."""

    mode = Mode.WRITE

    @property
    def fencing_token(self) -> int:
        """Higher than that of every holder before. Raises `LockNotOwnedError` once the handle is not valid."""
        return self._prove().fence

    async def release(self) -> None:
        """Give the lock back. Does nothing the second time.

        Past the deadline the store is still asked: raises `LockNotOwnedError` if the lease had ended there. Raises
        `BackendError` if it does not say: then it is tried in the background, and may be called again.
        """
        if not self._given_back(Poison.CLEAR):
            await self._give_back(Poison.CLEAR)


@final
class ReadGuard(Guard):
    """The proof that nobody writes."""

    mode = Mode.READ

    @property
    def generation(self) -> int:
        """The fencing token of the last writer. Raises `LockNotOwnedError` once the guard is not valid."""
        return self._prove().fence

    @property
    def poisoned(self) -> bool:
        """True if a writer died, and none has succeeded since: what is read may be half-written."""
        return self.lease.poisoned

    async def release(self) -> None:
        """Give the lock back. Does nothing the second time. Raises as `LockHandle.release` does."""
        if not self._given_back(Poison.CLEAR):
            await self._give_back(Poison.CLEAR)


@final
class WriteGuard(Guard):
    """The proof that nobody else writes or reads."""

    mode = Mode.WRITE

    @property
    def fencing_token(self) -> int:
        """Higher than that of every writer before. Raises `LockNotOwnedError` once the guard is not valid."""
        return self._prove().fence

    @property
    def poisoned(self) -> bool:
        """True if a writer died, and none has succeeded since: what this one finds may be half-written."""
        return self.lease.poisoned

    async def release(self, poison: bool | Poison = False) -> None:
        """Give the lock back; the resource is whole now, or with `poison=True` it is broken.

        Does nothing the second time. Raises as `LockHandle.release` does.
        """
        if not isinstance(poison, Poison):
            poison = Poison.SET if poison else Poison.CLEAR
        if not self._given_back(poison):
            await self._give_back(poison)

    async def downgrade(self) -> ReadGuard:
        """Publish: become a reader under the same fence, with no gap in which a writer could slip in.

        This guard is spent before the request leaves; an `async with` that it was bound by releases the read guard at
        its end. Raises `LockNotOwnedError` if the lease had ended, `BackendError` if the store does not say: then
        whatever is held is taken back.
        """
        lease = self._prove()
        self._left, self._grip = True, None
        try:
            reader = await lease.downgrade()
        except BaseException:
            lease.crew.forgot(lease)
            raise
        finally:
            self._lost = lease.lost
        heir = self._heir = ReadGuard(reader, reader, lease.crew.keep(reader))
        return heir
