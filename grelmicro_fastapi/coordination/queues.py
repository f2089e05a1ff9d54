"""One queue: those who wait in this process for one key in one mode.

One seat per key, mode and process. Writers queue first come first served and one of them asks at a time; the readers
that wait here ask together. A refused queue sleeps until it is woken, but never past the lease that blocks it nor a
third of its place.
"""

import asyncio
import random
from functools import partial
from typing import Protocol

from grelmicro_fastapi.coordination.clock import Clock, Timer
from grelmicro_fastapi.coordination.courier import OPERATION, Courier, Parcel, judge
from grelmicro_fastapi.coordination.identity import mint, owner, seat
from grelmicro_fastapi.coordination.state import Acquire, Leave, Mode, Reply, Verdict
from grelmicro_fastapi.coordination.store import Answer
from grelmicro_fastapi.coordination.wish import Grant, Wish
from grelmicro_fastapi.errors import BackendError, LockTimeoutError, StaleGenerationError


class Room(Protocol):
    """What a queue needs of the waiting room it is in."""

    courier: Courier
    clock: Clock
    polls: bool

    def gone(self, place: tuple[str, Mode]) -> None:
        """Forget an empty queue."""
        ...


class Waiter:
    """One caller in the queue."""

    __slots__ = ("asked", "error", "future", "held", "owner", "parcel", "retry", "token", "wish")

    def __init__(self, wish: Wish, future: "asyncio.Future[Grant]") -> None:
        self.wish = wish
        self.future = future
        self.owner = owner()
        self.token = mint(wish.worker, self.owner)
        self.asked = 0.0
        self.parcel: Parcel | None = None
        self.held = False
        self.retry = 0
        self.error: BackendError | None = None

    def overdue(self) -> Exception:
        """Say why the wait ended without a grant."""
        if not self.held:
            return self.error or BackendError(f"no answer about {self.wish.name!r} in time")
        late = LockTimeoutError(f"{self.wish.name!r} stayed held by somebody else: wait longer, or try again later")
        late.retry_after = self.retry / 1000 if self.retry else None
        return late


class Queue:
    """Those who wait here for one key in one mode. `seated` says that the store knows of us."""

    def __init__(self, room: Room, key: str, mode: Mode) -> None:
        self.waiters: list[Waiter] = []
        self.seated = False
        self._room = room
        self._key = key
        self._mode = mode
        self._seat = seat(room.courier.store.channel, mode)
        self._flying = 0
        self._again = False
        self._behind = False
        self._timer: Timer | None = None
        self._alarm = 0.0
        self._failing = 0.0

    def join(self, waiter: Waiter) -> None:
        """Queue, and ask at once unless it is known to be in vain."""
        self.waiters.append(waiter)
        if self._timer is None and (self._mode is Mode.READ or not self._flying):
            self._send([waiter])

    def leave(self, waiter: Waiter) -> None:
        """Give up: what has left already is undone, should it be granted."""
        if waiter not in self.waiters:
            return
        self.waiters.remove(waiter)
        if parcel := waiter.parcel:
            parcel.withdraw()
            waiter.parcel = None
            if not parcel.sent:
                self._landed()
                return
        if not self._flying:
            self._rest()

    def dismiss(self, waiter: Waiter, error: Exception) -> None:
        """Send one away with an error."""
        if not waiter.future.done():
            waiter.future.set_exception(error)
        self.leave(waiter)

    def wake(self, after: int) -> None:
        """Ask now, or in `after` ms unless something else happens first."""
        if self._flying:
            self._again = self._again or not after
        elif not after:
            self._ask()
        elif self._timer and self._room.clock.now() + after / 1000 < self._alarm:
            self._sleep(after / 1000)

    def _ask(self) -> None:
        self._quiet()
        self._behind = False
        if self._mode is Mode.WRITE:
            self._send(self.waiters[:1])
        else:
            self._send(list(self.waiters))

    def _send(self, askers: list[Waiter]) -> None:
        courier = self._room.courier
        self._flying += len(askers)
        for left, waiter in enumerate(askers, 1 - len(askers)):
            wish = waiter.wish
            waiter.asked = self._room.clock.now()
            command = Acquire(
                waiter.token,
                self._mode,
                wish.ttl,
                self._seat,
                courier.pace.place,
                left < 0,
                wish.expect,
                wish.note,
            )
            parcel = courier.post(self._key, command, partial(self._answered, waiter))
            waiter.parcel = None if parcel.landed else parcel

    def _answered(self, waiter: Waiter, answer: Answer) -> None:
        waiter.parcel = None
        if isinstance(answer, Reply):
            self.seated = answer.seated
        if waiter in self.waiters:
            self._serve(waiter, answer)
        self._landed()

    def _serve(self, waiter: Waiter, answer: Answer) -> None:
        try:
            reply = judge(answer)
        except BackendError as error:
            self._failed(waiter, error)
            return
        self._failing = 0.0
        if reply.verdict is Verdict.HELD:
            waiter.held, waiter.retry = True, reply.retry
            return
        self.waiters.remove(waiter)
        if waiter.future.done():
            if reply.verdict is Verdict.GRANTED:
                self._room.courier.undo(self._key, waiter.token, waiter.wish.lease)
        elif reply.verdict is Verdict.GRANTED:
            # The writer behind asks when this one leaves: before, it would be in vain.
            self._behind = self._mode is Mode.WRITE
            waiter.future.set_result(Grant(waiter.token, waiter.asked, reply))
        elif reply.verdict is Verdict.MISMATCH:
            name = waiter.wish.name
            stale = StaleGenerationError(
                f"{name!r} is not at generation {waiter.wish.expect}: read it again", reply.fence
            )
            waiter.future.set_exception(stale)
        else:
            waiter.future.set_exception(BackendError(f"the store refused {waiter.wish.name!r}: {reply.verdict.value}"))

    def _failed(self, waiter: Waiter, error: BackendError) -> None:
        """Tell a newcomer at once; one who was told to wait before sits a short outage out."""
        now = self._room.clock.now()
        self._failing = self._failing or now
        waiter.error = error
        # That attempt is being undone: the next one needs a token of its own.
        waiter.token = mint(waiter.wish.worker, waiter.owner)
        if not waiter.held or now - self._failing > OPERATION:
            self.waiters.remove(waiter)
            if not waiter.future.done():
                waiter.future.set_exception(error)

    def _landed(self) -> None:
        self._flying -= 1
        if not self._flying:
            self._rest()

    def _rest(self) -> None:
        again, self._again = self._again, False
        if not self.waiters:
            self._quiet()
            if self.seated:
                self._room.courier.insist(self._key, Leave(self._seat), self._room.courier.pace.place / 1000)
            self._room.gone((self._key, self._mode))
        elif again:
            self._ask()
        elif self._timer is None:
            self._sleep(self._pause())

    def _pause(self) -> float:
        """How long to sleep, in seconds, if nothing wakes us."""
        first = self.waiters[0]
        third = self._room.courier.pace.place / 3000
        if self._failing:
            return min(0.1 + (self._room.clock.now() - self._failing) / 2, 1.0) * random.uniform(0.8, 1.2)
        if not first.held and not self._behind:
            return 0.0
        pause = third
        if first.retry:
            pause = min(pause, first.retry / 1000 + 0.001)
        if self._room.polls:
            jitter = first.wish.retry_jitter
            pause = min(pause, first.wish.retry_interval * random.uniform(1 - jitter, 1 + jitter))
        return pause

    def _sleep(self, seconds: float) -> None:
        self._quiet()
        self._alarm = self._room.clock.now() + seconds
        self._timer = self._room.clock.call_later(seconds, self._rang)

    def _rang(self) -> None:
        self._timer = None
        if self.waiters and not self._flying:
            self._ask()

    def _quiet(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
