"""Keeps leases alive, and declares them lost.

Renews at a third of the lease, batched, on a lane of its own; retries until the local deadline, then the lease is
lost. It holds guards weakly: a guard that is dropped without release stops being renewed.
"""

import asyncio
import heapq
import itertools
import logging
import random
import weakref
from typing import NamedTuple

from grelmicro_fastapi.coordination.clock import Clock, Timer
from grelmicro_fastapi.coordination.courier import Courier
from grelmicro_fastapi.coordination.lease import RENEWALS, Grip, Lease
from grelmicro_fastapi.coordination.state import Renew, Reply, Verdict
from grelmicro_fastapi.coordination.store import Answer

_log = logging.getLogger("grelmicro_fastapi.coordination")


class _Charge(NamedTuple):
    """Something to look at, at a time."""

    when: float
    number: int
    lease: Lease
    grip: "weakref.ref[Grip]"


class Keeper:
    """Looks after the leases of one loop."""

    def __init__(self, courier: Courier, clock: Clock) -> None:
        self._courier = courier
        self._clock = clock
        self._charges: list[_Charge] = []
        self._numbers = itertools.count()
        self._timer: Timer | None = None
        self._alarm = 0.0

    def keep(self, grip: Grip) -> None:
        """See that the lease is renewed while somebody has a grip of it, and that its owner learns of its end."""
        lease = grip.lease
        charge = _Charge(0.0, next(self._numbers), lease, weakref.ref(grip))
        self._plan(charge, self._next_renewal(lease) if lease.wish.keep_alive else lease.deadline)

    def close(self) -> None:
        """Stop. Leases end by themselves."""
        self._charges.clear()
        if self._timer:
            self._timer.cancel()

    def _next_renewal(self, lease: Lease) -> float:
        every = min(lease.wish.lease / 3, lease.wish.renew_every)
        return self._clock.now() + every * random.uniform(0.9, 1.0)

    def _plan(self, charge: _Charge, when: float) -> None:
        lease = charge.lease
        lease.due = min(when, lease.deadline)
        heapq.heappush(self._charges, charge._replace(when=lease.due))
        if self._timer is None or lease.due < self._alarm:
            self._wind()

    def _wind(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._charges:
            self._alarm = self._charges[0].when
            self._timer = self._clock.call_later(self._alarm - self._clock.now(), self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._clock.now()
        # Timers can ring a moment early: whoever is due within a millisecond is due.
        while self._charges and self._charges[0].when <= now + 0.001:
            charge = heapq.heappop(self._charges)
            if charge.lease.due == charge.when and not charge.lease.spent and not charge.lease.lost:
                self._see_to(charge, now)
        self._wind()

    def _see_to(self, charge: _Charge, now: float) -> None:
        lease = charge.lease
        if now + 0.001 >= lease.deadline:
            self._lost(charge, "its lease could not be renewed in time" if lease.wish.keep_alive else "its lease ended")
        elif lease.final:
            self._plan(charge, lease.deadline)
        elif lease.wish.keep_alive and charge.grip() is None:
            _log.warning("a guard of %r was dropped without release: it is not renewed any more", lease.wish.name)
        elif lease.wish.keep_alive:
            self._renew(charge, now)
        else:
            self._plan(charge, lease.deadline)

    def _renew(self, charge: _Charge, asked: float) -> None:
        lease = charge.lease

        def answered(answer: Answer) -> None:
            if lease.spent or lease.lost:
                return
            if isinstance(answer, Reply) and answer.verdict is Verdict.GONE:
                self._lost(charge, "the store says that its lease has ended")
            elif isinstance(answer, Reply) and answer.verdict is Verdict.GRANTED:
                lease.extended(asked)
                self._plan(charge, self._next_renewal(lease))
            else:
                self._plan(
                    charge,
                    self._clock.now()
                    + min(lease.wish.lease / 10, lease.wish.renew_every, 1.0) * random.uniform(0.5, 1.0),
                )

        # Should no answer come at all, we look again at the deadline.
        self._plan(charge, lease.deadline)
        wish = lease.wish
        # A renewal that hangs must leave time for another before the lease ends.
        bound = min(wish.lease / 3, wish.patience)
        self._courier.post(wish.key, Renew(lease.token, wish.ttl), answered, lane=RENEWALS, bound=bound)

    def _lost(self, charge: _Charge, why: str) -> None:
        lease = charge.lease
        _log.error("lost %r: %s", lease.wish.name, why, extra={"lock_name": lease.wish.name, "event": "lock.lost"})
        lease.lose()
        if lease.wish.cancels and lease.holders and isinstance(task := lease.holders[0].owner, asyncio.Task):
            lease.cancelled = task
            task.cancel(f"the lock {lease.wish.name!r} was lost")
