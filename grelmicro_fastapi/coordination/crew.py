"""The courier, the waiting room and the keeper that work on one loop for one store."""

import asyncio
import logging
from collections.abc import Iterator
from contextvars import ContextVar

from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.coordination.courier import OPERATION, Courier
from grelmicro_fastapi.coordination.identity import Owner, mint, owner
from grelmicro_fastapi.coordination.keeper import Keeper
from grelmicro_fastapi.coordination.lease import Grip, Holder, Lease
from grelmicro_fastapi.coordination.state import Acquire, Mode, Reply, Verdict
from grelmicro_fastapi.coordination.store import Ask, Store
from grelmicro_fastapi.coordination.waiting import Waiting
from grelmicro_fastapi.coordination.wish import Grant, Wish, trusted_until
from grelmicro_fastapi.errors import (
    BackendError,
    DrainingError,
    LockReentrantError,
    LockTimeoutError,
    LockUpgradeError,
    StaleGenerationError,
)

_log = logging.getLogger("grelmicro_fastapi.coordination")

_reading: "ContextVar[tuple[Lease, ...]]" = ContextVar("grelmicro_fastapi_reading", default=())
"""The read leases that this task took or descends from."""


class Crew:
    """Takes and gives back leases on one loop, and knows which it holds."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.courier = Courier(store, clock)
        self.waiting = Waiting(self.courier, clock, self.holds)
        self.keeper = Keeper(self.courier, clock)
        self.draining = False
        self._leases: dict[str, list[Lease]] = {}
        self._crowded = 1024
        self._listener: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Listen for wakes."""
        self._listener = asyncio.get_running_loop().create_task(self._listen())

    async def close(self, patience: float = OPERATION) -> None:
        """Send the waiting away, let undos and releases arrive for so many seconds, then stop."""
        self.drain()
        self.keeper.close()
        await self.courier.close(patience)
        if self._listener:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)

    def drain(self) -> None:
        """Take no more locks: whoever waits is sent away with `DrainingError`. Held leases stay valid."""
        self.draining = True
        self.waiting.fail(_drained())

    async def take(self, wish: Wish, timeout: float | None) -> Grant:
        """Acquire within `timeout` seconds (None: without end, 0: one attempt); nothing is left behind otherwise."""
        if self.draining:
            raise _drained()
        if timeout == 0:
            return await self._try(wish)
        return await self._wait(wish, timeout)

    def take_at_once(self, wish: Wish, who: Owner) -> Grant | None:
        """Acquire where that needs no waiting: the store is in our memory, the lock is free, and nobody queues."""
        at_once = self.courier.at_once
        if at_once is None or self.draining or (wish.key, wish.mode) in self.waiting:
            return None
        asked, token = self.clock.now(), mint(wish.worker, who)
        command = Acquire(token, wish.mode, wish.ttl, expect=wish.expect, note=wish.note)
        answer = at_once(Ask(wish.key, command, self.courier.pace.claim))
        if isinstance(answer, Reply) and answer.verdict is Verdict.GRANTED:
            return Grant(token, asked, answer)
        return None

    def nests(self, wish: Wish, who: Owner) -> Grip | None:
        """Return the grip of the read lease to join, if any. Raises if the running task would wait for itself."""
        for lease in self._leases.get(wish.key, ()):
            if any(holder.owner is who for holder in lease.holders) and lease.valid:
                if wish.mode is Mode.WRITE and lease.wish.mode is Mode.READ:
                    raise LockUpgradeError(
                        f"this task reads {wish.name!r} and asks to write it: two such would wait for each other for "
                        "ever, so take the write lock from the start"
                    )
                raise LockReentrantError(f"this task holds {wish.name!r} already: pass its guard on instead")
        if wish.mode is Mode.READ:
            for lease in _reading.get():
                if lease.wish.key == wish.key and lease.crew is self and lease.valid and lease.grip:
                    return lease.grip()
        return None

    def keep(self, grip: Grip) -> None:
        """Renew the lease, or tell its owner of its end, if that was asked for."""
        wish = grip.lease.wish
        if wish.keep_alive or wish.cancels:
            self.keeper.keep(grip)

    def took(self, lease: Lease) -> None:
        """Count a lease as held here."""
        if len(self._leases) >= self._crowded:
            self._forget_the_dead()
        self._leases.setdefault(lease.wish.key, []).append(lease)
        if lease.wish.mode is Mode.READ:
            _reading.set((*(other for other in _reading.get() if other.valid), lease))

    def left(self, lease: Lease) -> None:
        """Count it no more."""
        leases = self._leases.get(lease.wish.key)
        if leases and lease in leases:
            leases.remove(lease)
            if not leases:
                del self._leases[lease.wish.key]

    def holds(self, key: str) -> bool:
        """Is a valid lease of that key held on this loop?"""
        return any(True for _ in self._valid(key))

    def taken(self, key: str, source: object) -> Lease | None:
        """The lease that the running task took through that object, lost or not, or None."""
        holder = Holder(owner(), source)
        return next((lease for lease in reversed(self._leases.get(key, [])) if holder in lease.holders), None)

    def held(self) -> Iterator[Lease]:
        """Every valid lease of this loop."""
        for key in list(self._leases):
            yield from self._valid(key)

    def _valid(self, key: str) -> Iterator[Lease]:
        return (lease for lease in self._leases.get(key, ()) if lease.valid)

    def _forget_the_dead(self) -> None:
        for key, leases in list(self._leases.items()):
            if not any(lease.valid for lease in leases):
                del self._leases[key]
        self._crowded = max(1024, 2 * len(self._leases))

    async def _try(self, wish: Wish) -> Grant:
        asked, token = self.clock.now(), mint(wish.worker, owner())
        command = Acquire(token, wish.mode, wish.ttl, expect=wish.expect, note=wish.note)
        reply = await self.courier.ask(wish.key, command, min(OPERATION, wish.lease))
        if reply.verdict is Verdict.GRANTED:
            return self._checked(wish, Grant(token, asked, reply))
        if reply.verdict is Verdict.MISMATCH:
            raise StaleGenerationError(f"{wish.name!r} is not at generation {wish.expect}: read it again", reply.fence)
        late = LockTimeoutError(f"{wish.name!r} is held by somebody else: wait, or try again later")
        late.retry_after = reply.retry / 1000 if reply.retry else None
        raise late

    async def _wait(self, wish: Wish, timeout: float | None) -> Grant:
        waiter = self.waiting.join(wish)

        def expire() -> None:
            if not waiter.future.done():
                waiter.future.set_exception(waiter.overdue())
                self.waiting.leave(waiter)

        timer = None if timeout is None or waiter.future.done() else self.clock.call_later(timeout, expire)
        try:
            return self._checked(wish, await waiter.future)
        except asyncio.CancelledError:
            future = waiter.future
            self.waiting.leave(waiter)
            # The grant may have come in the same moment as the cancellation.
            if future.done() and not future.cancelled() and not future.exception():
                self._give_back(wish, future.result().token)
            raise
        finally:
            if timer:
                timer.cancel()

    def _checked(self, wish: Wish, grant: Grant) -> Grant:
        if self.clock.now() < trusted_until(wish, grant.asked):
            return grant
        self._give_back(wish, grant.token)
        raise BackendError(f"the store granted {wish.name!r} too late: its lease of {wish.lease:g} s was over")

    def _give_back(self, wish: Wish, token: str) -> None:
        self.courier.undo(wish.key, token, wish.lease)
        self.waiting.released(wish.key)

    async def _listen(self) -> None:
        try:
            await self.store.listen(self.waiting.wake)
        except BackendError as error:
            _log.warning("wakes are not heard, so waiters poll: %s", error)
        self.waiting.polls = True
        self.waiting.wake(None)


def _drained() -> DrainingError:
    return DrainingError("this process is shutting down: ask another one")
