"""The courier, the waiting room and the keeper that work on one loop for one store."""

import asyncio
import logging
import weakref
from contextvars import Context
from functools import partial
from typing import Protocol

from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.coordination.courier import Courier
from grelmicro_fastapi.coordination.futures import sleep
from grelmicro_fastapi.coordination.holder import Grip
from grelmicro_fastapi.coordination.identity import Owner, mint, owner
from grelmicro_fastapi.coordination.keeper import Keeper
from grelmicro_fastapi.coordination.lease import Lease
from grelmicro_fastapi.coordination.parcel import OPERATION
from grelmicro_fastapi.coordination.register import Register
from grelmicro_fastapi.coordination.state import Acquire, Reply, Verdict, made_acquire
from grelmicro_fastapi.coordination.store import DirectStore, Store
from grelmicro_fastapi.coordination.waiting import Waiting
from grelmicro_fastapi.coordination.wish import Grant, Wish, stale
from grelmicro_fastapi.errors import (
    BackendError,
    DrainingError,
    LockTimeoutError,
)

_log = logging.getLogger("grelmicro_fastapi.coordination")


class Candidacy(Protocol):
    """What a crew knows of somebody who stands for leadership here."""

    name: str

    @property
    def leading(self) -> object | None:
        """The leadership, if it is valid at this moment."""
        ...

    def withdraw(self) -> None:
        """Stand no more, and resign when the bodies that lead have ended."""
        ...


class Crew:
    """Takes and gives back leases on one loop, and knows which it holds."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.direct: DirectStore | None = store if isinstance(store, DirectStore) else None
        """The store, if it is in our memory."""
        self.clock = clock
        self._now = clock.now
        self.courier = Courier(store, clock)
        register = Register()
        self._leases = register.leases
        self.nests, self.took, self.taken = register.nests, register.took, register.taken
        self.joined, self.parted, self.forgot = register.joined, register.parted, register.forgot
        self.holds, self.held = register.holds, register.held
        self.waiting = Waiting(self.courier, clock, self.holds)
        self.keeper = Keeper(self.courier, clock)
        self.draining = False
        self.users = 0
        """How often its provider is open on this loop: whoever is not the last must not send others away."""
        self.candidacies: list[Candidacy] = []
        self._listener: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Listen for wakes."""
        self._listener = asyncio.get_running_loop().create_task(self._listen(), context=Context())

    async def close(self, patience: float = OPERATION) -> None:
        """Send the waiting away, let undos and releases arrive for so many seconds, then stop."""
        self.drain()
        try:
            await self.courier.close(patience)
        finally:
            self.keeper.close()
            if self._listener:
                self._listener.cancel()
        if self._listener:
            await asyncio.gather(self._listener, return_exceptions=True)

    def drain(self) -> None:
        """Take no more locks: leaders resign, and whoever waits is sent away with `DrainingError`.

        Held guards stay valid."""
        self.draining = True
        for candidacy in list(self.candidacies):
            candidacy.withdraw()
        self.waiting.fail(_drained)

    async def idle(self, patience: float) -> bool:
        """Wait until no lease is held here, for so many seconds at the most. Is it so?"""
        until = self.clock.now() + patience
        while any(self.held()):
            if self.clock.now() >= until:
                return False
            await sleep(self.clock, 0.01)
        return True

    async def take(self, wish: Wish, timeout: float | None, who: Owner, source: object) -> Lease:
        """Acquire within `timeout` seconds (None: without end, 0: one attempt); nothing is left behind otherwise."""
        if self.draining:
            raise _drained()
        grant = await (self._try(wish) if timeout == 0 else self._wait(wish, timeout))
        # From here to the caller there is no await: nothing can come between the grant and its guard.
        token, asked, reply = grant
        lease = Lease(self, wish, token, asked, (reply.fence, reply.poisoned), who, source)
        self.took(lease)
        return lease

    def take_at_once(self, wish: Wish, who: Owner, source: object) -> Lease | None:
        """Acquire where that needs no waiting: the store is in our memory, the lock is free, and nobody queues."""
        direct, queues = self.direct, self.waiting.queues
        if direct is None or self.draining or (queues and (wish.key, wish.mode) in queues):
            return None
        # No time passes here, so only a lease that is shorter than its margin could be over at once.
        if wish.trusted <= 0 or (wish.key in self._leases and self.nests(wish, who)):
            return None
        asked, token = self._now(), mint(wish.worker, who)
        found = direct.enter(wish.key, token, wish.mode, wish.ttl, wish.note) if wish.expect is None else None
        if found is None:
            command = made_acquire((token, wish.mode, wish.ttl, "", 0, False, wish.expect, wish.note))
            answer = direct.at_once(wish.key, command, self.courier.pace.claim)
            if not isinstance(answer, Reply) or answer.verdict is not Verdict.GRANTED:
                return None
            found = answer.fence, answer.poisoned
        lease = Lease(self, wish, token, asked, found, who, source)
        self.took(lease)
        return lease

    def keep(self, lease: Lease) -> Grip | None:
        """Renew the lease, or tell its owner of its end, if that was asked for.

        A lease that is renewed is so for as long as somebody has the grip that this returns.
        """
        wish = lease.wish
        if not (wish.keep_alive or wish.cancels):
            return None
        grip = Grip() if wish.keep_alive else None
        lease.grip = weakref.ref(grip) if grip else None
        self.keeper.keep(lease)
        return grip

    async def _try(self, wish: Wish) -> Grant:
        asked, token = self.clock.now(), mint(wish.worker, owner())
        command = Acquire(token, wish.mode, wish.ttl, expect=wish.expect, note=wish.note)
        reply = await self.courier.ask(wish.key, command, min(OPERATION, wish.lease, wish.trust))
        if reply.verdict is Verdict.GRANTED:
            return self._checked(wish, Grant(token, asked, reply))
        if reply.verdict is Verdict.MISMATCH:
            raise stale(wish, reply)
        late = LockTimeoutError(f"{wish.name!r} is held by somebody else: wait, or try again later")
        late.retry_after = reply.retry / 1000 if reply.retry else None
        raise late

    async def _wait(self, wish: Wish, timeout: float | None) -> Grant:
        waiter = self.waiting.join(wish)
        timer = None
        if timeout is not None and not waiter.future.done():
            timer = self.clock.call_later(timeout, partial(self.waiting.expire, waiter))
        try:
            grant = await waiter.future
        except BaseException:
            self.waiting.leave(waiter)
            # The grant may have come in the same moment as the cancellation.
            if given := waiter.granted:
                self._give_back(wish, given.token)
            raise
        finally:
            if timer:
                timer.cancel()
        return self._checked(wish, grant)

    def _checked(self, wish: Wish, grant: Grant) -> Grant:
        if self.clock.now() < grant.asked + wish.trusted:
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
        except Exception:
            _log.exception("a store broke its promise: only BackendError may leave listen. Waiters poll")
        self.waiting.polls = True
        self.waiting.wake(None)


def _drained() -> DrainingError:
    return DrainingError("this process is shutting down: ask another one")
