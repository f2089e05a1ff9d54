"""One mode of one lock: what `Lock` is, and what `ReadWriteLock.read` and `.write` are."""

import math
from contextlib import AsyncContextDecorator
from types import TracebackType
from typing import Any, ClassVar, Generic, TypeVar

from grelmicro_fastapi.coordination.backend import Source, crew_of
from grelmicro_fastapi.coordination.crew import Crew
from grelmicro_fastapi.coordination.guards import Guard
from grelmicro_fastapi.coordination.holder import Holder
from grelmicro_fastapi.coordination.identity import Owner, owner
from grelmicro_fastapi.coordination.lease import Lease
from grelmicro_fastapi.coordination.rules import step
from grelmicro_fastapi.coordination.state import Mode, Poison, State, Vacate
from grelmicro_fastapi.coordination.wish import Wish
from grelmicro_fastapi.errors import LockNotOwnedError, LockTimeoutError, WouldBlockError

G = TypeVar("G", bound=Guard)


class Held(AsyncContextDecorator, Generic[G]):
    """What can be held in one mode. May be shared by tasks: ownership lies in the guards it hands out.

    It decorates `async` functions too: then each call of one runs under `async with`.
    """

    _patience: ClassVar[float | None] = None
    """How long `async with` waits, in seconds. None: without end."""

    def __init__(self, wish: Wish, source: Source | None, guard: type[G]) -> None:
        self._wish = wish
        self._source = source
        self._guard = guard
        # By owner, with what it had entered before: that can only be a guard that was lost.
        self._entered: dict[Owner, tuple[G, Any]] = {}

    @property
    def name(self) -> str:
        """What is protected."""
        return self._wish.name

    @property
    def source(self) -> Source | None:
        """What was given as `backend=`."""
        return self._source

    async def enter(self) -> G:
        """Acquire as `async with` does."""
        return self._at_once(self._wish, self._patience) or await self._take(self._wish, self._patience)

    async def extend(self) -> None:
        """Extend what this task acquired through this object. Raises as `Guard.extend`."""
        lease = self._mine()
        if lease is None:
            raise self._not_owned()
        await lease.extend()

    async def release(self) -> None:
        """Release what this task acquired through this object, and never another's. Raises as the guard's `release`."""
        lease = self._mine()
        if lease is None:
            raise self._not_owned()
        holder = lease.holder(owner(), self)
        if len(lease.holders) == 1:
            # Only then: a release that failed may be asked for again.
            await lease.release(Poison.CLEAR)
        if holder:
            lease.crew.parted(lease, holder)

    async def locked(self) -> bool:
        """Ask the store: does anybody hold it, in any mode?"""
        state = await look(self._source, self._wish.key)
        return state.writer is not None or bool(state.readers)

    async def owned(self) -> bool:
        """Ask the store: is what this task acquired through this object still held?"""
        lease = self._mine()
        if lease is None or not lease.valid:
            return False
        state = await look(self._source, self._wish.key)
        return lease.token in state.readers or (state.writer is not None and state.writer.token == lease.token)

    async def __aenter__(self) -> G:
        guard = self._at_once(self._wish, self._patience) or await self._take(self._wish, self._patience)
        who = guard.holder.owner
        self._entered[who] = (guard, self._entered.get(who))
        return guard

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered = self._entered
        # A generator may be entered in one task and left in another: then it is the only one, or nobody knows.
        who = next(iter(entered)) if len(entered) == 1 else owner()
        if who not in entered:
            raise RuntimeError(
                f"{self.name!r} was entered by several tasks through one object and is left by yet another: use "
                "acquire() and the guard's release() there"
            )
        guard, before = entered.pop(who)
        if before:
            entered[who] = before
        await guard.leave(error)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._wish.key!r}>"

    def _at_once(self, wish: Wish, timeout: float | None) -> G | None:
        """Acquire in this very step, where nobody has to be waited for; otherwise None, and `_take` is next."""
        if timeout is not None and not 0 <= timeout < math.inf:
            raise ValueError(f"timeout= is None or a number of seconds from 0 up, not {timeout!r}")
        crew = crew_of(self._source)
        lease = crew.take_at_once(wish, owner(), self)
        if lease is None:
            return None
        return self._guard(lease, lease, crew.keep(lease) if wish.keep_alive or wish.cancels else None)

    async def _take(self, wish: Wish, timeout: float | None) -> G:
        crew, who = crew_of(self._source), owner()
        if joined := crew.nests(wish, who):
            holder = Holder(who, self)
            crew.joined(joined, holder)
            return self._guard(joined, holder, joined.grip() if joined.grip else None)
        lease = await crew.take(wish, timeout, who, self)
        return self._guard(lease, lease, crew.keep(lease))

    def _crew(self) -> Crew:
        return crew_of(self._source)

    def _mine(self) -> Lease | None:
        return self._crew().taken(self._wish.key, self)

    def _not_owned(self) -> LockNotOwnedError:
        mode = "reader" if self._wish.mode is Mode.READ else "holder"
        return LockNotOwnedError(f"this task is no {mode} of {self.name!r} through this object: acquire it first")


class View(Held[G]):
    """One mode of a lock that can be waited for."""

    async def acquire(self, *, timeout: float | None = None) -> G:
        """Acquire, waiting for at most `timeout` seconds: None is without end, 0 is one attempt.

        Raises `LockTimeoutError` if somebody else held it until then, `BackendError` if the store gave no verdict,
        `LockReentrantError` or `LockUpgradeError` if this task holds it already, `DrainingError` while the process
        shuts down, `QueueFullError` if too many wait here. Whatever it raises, nothing is left held.
        """
        return self._at_once(self._wish, timeout) or await self._take(self._wish, timeout)

    async def acquire_nowait(self) -> G:
        """Acquire in one attempt. Raises `WouldBlockError` if somebody else holds it, and otherwise as `acquire`."""
        try:
            return self._at_once(self._wish, 0) or await self._take(self._wish, 0)
        except LockTimeoutError as busy:
            raise WouldBlockError(str(busy)) from None


async def look(source: Source | None, key: str) -> State:
    """What the store keeps for a key, without the dead."""
    state, now = await crew_of(source).courier.peek(key)
    step(state, Vacate(), now)
    return state
