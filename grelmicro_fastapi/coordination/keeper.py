"""Keeps leases alive, and declares them lost.

Renews at a third of the lease, batched, on a lane of its own; retries until the local deadline, then the lease is
lost. It holds guards weakly: a guard that is dropped without release stops being renewed.
"""

import heapq
import itertools
import logging
import math
import random
from typing import NamedTuple

from grelmicro_fastapi.coordination.clock import Clock, Timer
from grelmicro_fastapi.coordination.courier import Courier
from grelmicro_fastapi.coordination.lease import Lease
from grelmicro_fastapi.coordination.parcel import OPERATION, RENEWALS
from grelmicro_fastapi.coordination.state import Renew, Reply, Verdict, maker
from grelmicro_fastapi.coordination.store import Answer

_log = logging.getLogger("grelmicro_fastapi.coordination")


class _Charge(NamedTuple):
    """Something to look at, at a time."""

    when: float
    number: int
    lease: Lease


_charge = maker(_Charge)


class Keeper:
    """Looks after the leases of one loop."""

    def __init__(self, courier: Courier, clock: Clock) -> None:
        self._courier = courier
        self._clock = clock
        self._charges: list[_Charge] = []
        self._crowded = 256
        self._numbers = itertools.count()
        self._timer: Timer | None = None
        self._alarm = 0.0
        self._closed = False

    def keep(self, lease: Lease) -> None:
        """See that the lease is renewed while somebody has its grip, and that its owner learns of its end."""
        self._plan(lease, self._next_renewal(lease) if lease.wish.keep_alive else lease.deadline)

    def close(self) -> None:
        """Stop. Leases end by themselves."""
        self._closed = True
        self._charges.clear()
        self._wind()

    def _next_renewal(self, lease: Lease) -> float:
        every = min(lease.wish.lease / 3, lease.wish.renew_every)
        return self._clock.now() + every * (0.9 + random.random() / 10)

    def _plan(self, lease: Lease, when: float) -> None:
        if self._closed:
            return
        lease.due = min(when, lease.deadline)
        if len(self._charges) >= self._crowded:
            self._forget_the_released()
        heapq.heappush(self._charges, _charge((lease.due, next(self._numbers), lease)))
        if self._timer is None or lease.due < self._alarm:
            self._wind()

    def _forget_the_released(self) -> None:
        """Guards come and go much faster than their renewals fall due."""
        self._charges = [charge for charge in self._charges if _matters(charge)]
        heapq.heapify(self._charges)
        self._crowded = max(256, 2 * len(self._charges))

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
        while self._charges and self._charges[0].when <= now + _slack(self._charges[0]):
            charge = heapq.heappop(self._charges)
            if _matters(charge):
                self._see_to(charge.lease, now)
        self._wind()

    def _see_to(self, lease: Lease, now: float) -> None:
        if now + 0.001 >= lease.deadline:
            lease.lose(_end(lease, now))
        elif lease.final:
            self._plan(lease, lease.deadline)
        elif lease.wish.keep_alive and not (lease.grip and lease.grip()):
            _log.warning("a guard of %r was dropped without release: it is not renewed any more", lease.wish.name)
        elif lease.wish.keep_alive:
            self._renew(lease, now)
        else:
            self._plan(lease, lease.deadline)

    def _renew(self, lease: Lease, asked: float) -> None:
        wish = lease.wish

        def answered(answer: Answer) -> None:
            if lease.spent or lease.lost:
                return
            if isinstance(answer, Reply) and answer.verdict is Verdict.GONE:
                lease.lose("the store says that its lease has ended", answer)
            elif isinstance(answer, Reply) and answer.verdict is Verdict.GRANTED:
                lease.extended(asked)
                self._plan(lease, self._next_renewal(lease))
            else:
                pause = min(wish.lease / 10, wish.renew_every, 1.0) * random.uniform(0.5, 1.0)
                self._plan(lease, self._clock.now() + pause)

        # Should no answer come at all, we look again at the deadline.
        self._plan(lease, lease.deadline)
        # A renewal that hangs must leave time for another before the lease ends.
        bound = min(wish.lease / 3, wish.patience, OPERATION)
        # Long leases may wait for a slow store when short ones cannot, so each size of bound has a lane of its own.
        lane = f"{RENEWALS} {math.frexp(bound)[1]}"
        self._courier.post(wish.key, Renew(lease.token, lease.ttl(asked)), answered, lane=lane, bound=bound)


def _matters(charge: _Charge) -> bool:
    lease = charge.lease
    return lease.due == charge.when and not lease.spent and not lease.lost


def _slack(charge: _Charge) -> float:
    """By how much, in seconds, to be early: renewals that fall due at almost the same time travel together."""
    lease = charge.lease
    if lease.wish.keep_alive and charge.when < lease.deadline:
        return min(lease.wish.lease / 50, 0.5)
    # Timers can ring a moment early.
    return 0.001


def _end(lease: Lease, now: float) -> str:
    if now + 0.001 >= lease.limit:
        return "it was held for max_hold"
    return "its lease could not be renewed in time" if lease.wish.keep_alive else "its lease ended"
