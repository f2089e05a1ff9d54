"""One queue: those who wait in this process for one key in one mode.

One seat per key, mode and process. Writers queue first come first served and one of them asks at a time; the readers
that wait here ask together. A refused queue sleeps until it is woken, but never past the lease that blocks it nor a
third of its place.
"""

import math
import random
from functools import partial
from typing import Protocol

from grelmicro_fastapi.coordination.clock import Clock, Timer
from grelmicro_fastapi.coordination.courier import Courier, fresh, judge
from grelmicro_fastapi.coordination.identity import mint, seat
from grelmicro_fastapi.coordination.parcel import OPERATION
from grelmicro_fastapi.coordination.run import Run
from grelmicro_fastapi.coordination.state import Leave, Mode, Reply, Verdict, made_acquire
from grelmicro_fastapi.coordination.store import Answer
from grelmicro_fastapi.coordination.waiter import Waiter
from grelmicro_fastapi.coordination.wish import Grant, refusal
from grelmicro_fastapi.coordination.word import Word
from grelmicro_fastapi.errors import BackendError


class Room(Protocol):
    """What a queue needs of the waiting room it is in."""

    courier: Courier
    clock: Clock
    polls: bool

    def gone(self, place: tuple[str, Mode]) -> None:
        """Forget an empty queue."""
        ...

    def __contains__(self, place: tuple[str, Mode]) -> bool: ...


class Queue:
    """Those who wait here for one key in one mode. `seated` says that the store may know of us."""

    def __init__(self, room: Room, key: str, mode: Mode) -> None:
        self.waiters: dict[Waiter, None] = {}
        self.seated = False
        self._run = Run()
        self._room = room
        self._key = key
        self._mode = mode
        self._seat = seat(room.courier.store.channel, mode)
        self._flying = 0
        self._timer: Timer | None = None
        self._alarm = math.inf
        self._said = Word()
        self._asking = self._again = False

    def join(self, waiter: Waiter) -> None:
        """Queue, and ask at once unless it is known to be in vain."""
        self.waiters[waiter] = None
        if self._timer is None and (self._mode is Mode.READ or not self._flying):
            self._send([waiter])

    def leave(self, waiter: Waiter) -> None:
        """Give up: what has left already is undone, should it be granted."""
        if waiter not in self.waiters:
            return
        waiter.future.cancel()
        del self.waiters[waiter]
        if waiter.parcel and waiter.parcel.left is None:
            # It was to ask for all of us, perhaps because we were called.
            self._alarm = -math.inf
            self._landed()
        elif not self.waiters and not self._flying:
            self._rest()

    def dismiss(self, waiter: Waiter, error: Exception) -> None:
        """Send one away with an error."""
        if not waiter.future.done():
            waiter.future.set_exception(error)
        self.leave(waiter)

    def expire(self, waiter: Waiter) -> None:
        """Its time is over. Does nothing if it was granted."""
        if not waiter.future.done():
            self.dismiss(waiter, self._said.overdue(waiter.wish.name))

    def wake(self, after: int, everybody: bool = True) -> None:
        """Ask now, or in `after` ms unless something else happens first."""
        if not self._flying and not after:
            self._ask(everybody)
            return
        alarm = self._room.clock.now() + after / 1000
        if self._flying:
            # The answer that is under way was perhaps given before.
            self._alarm = min(self._alarm, alarm)
        elif alarm < self._alarm:
            self._sleep(after / 1000)

    def released(self) -> None:
        """A lease of ours was just given back: ask in the same batch."""
        # A queue that the store knows of is called when it is next. Asking before would be in vain, unless it is.
        if self._run.on or not self.seated:
            self.wake(0)

    def called(self, after: int) -> None:
        """Our seat was told to ask, now or in `after` ms."""
        # A seat that was given up for our writer is nobody's, and one that was kept is next when that writer leaves.
        if self._flying or ((self.seated or not self._said.ours) and not self._run.on):
            self.wake(after)

    def _ask(self, everybody: bool) -> None:
        """Let the first one ask, or all readers: they enter together when it is their turn."""
        self._quiet()
        if self._run.on and self._run.left(self._room.clock.now()) <= 0:
            # Others have waited long enough: queue behind them.
            self._room.courier.post(self._key, Leave(self._seat), lambda _: None, later=True)
            self._run = Run()
        self._send(list(self.waiters) if everybody and self._mode is Mode.READ else [next(iter(self.waiters))])

    def _ask_on(self) -> None:
        """Let the next one ask, and the next, while each is answered in the step that asks, and sleeps on nothing."""
        self._again = True
        if self._asking:
            return
        self._asking = True
        try:
            while self._again and self.waiters:
                self._again = False
                self._ask(everybody=True)
        finally:
            self._asking = self._again = False

    def _send(self, askers: list[Waiter]) -> None:
        courier = self._room.courier
        self._flying += len(askers)
        self._run.on = False
        # A reader who asks for all keeps the turn for those who follow, and a writer the place.
        more = len(self.waiters) > len(askers) and (self._mode is Mode.READ or self._run.extends(courier.pace))
        for left, waiter in enumerate(askers, 1 - len(askers)):
            if waiter not in self.waiters:
                self._landed()
                continue
            wish = waiter.wish
            waiter.asked = self._room.clock.now()
            how = (self._seat, courier.pace.place, left < 0 or more, wish.expect, wish.note)
            command = made_acquire((waiter.token, self._mode, wish.ttl, *how))
            waiter.parcel = None
            done = partial(self._answered, waiter)
            parcel = courier.post(self._key, command, done, asker=waiter.future, later=left < 0)
            waiter.parcel = parcel if parcel.left is None else None

    def _answered(self, waiter: Waiter, answer: Answer) -> None:
        if waiter.parcel and waiter.parcel.left is not None:
            waiter.asked = waiter.parcel.left
        waiter.parcel = None
        try:
            reply = judge(answer)
        except BackendError as error:
            # It may have been applied all the same, and then we have a seat.
            self.seated = self.seated or (error.sent and isinstance(answer, BackendError))
            self._failed(waiter, error)
        else:
            self._serve(waiter, reply)
        self._landed()

    def _serve(self, waiter: Waiter, reply: Reply) -> None:
        # Of a refusal for good the law says nothing of the seat, for that stays as it was.
        if reply.verdict in (Verdict.HELD, Verdict.GRANTED):
            self.seated = reply.seated
        self._said.failing, self._said.error = 0.0, None
        if reply.verdict is Verdict.HELD:
            self._said.refused(reply.retry)
            return
        self.waiters.pop(waiter, None)
        if reply.verdict is Verdict.GRANTED:
            # The writer behind asks when this one leaves: before, it would be in vain.
            self._said.granted(self._mode is Mode.WRITE)
            self._alarm = math.inf
            self._run.granted(self._said.held and reply.seated, waiter.asked)
            if waiter.future.done():
                # Nobody came for it, and the courier takes it back: let the next one have it.
                self._said.freed()
            else:
                waiter.future.set_result(Grant(waiter.token, waiter.asked, reply))
        else:
            self._said.freed()
            if not waiter.future.done():
                waiter.future.set_exception(refusal(waiter.wish, reply))

    def _failed(self, waiter: Waiter, error: BackendError) -> None:
        """Tell newcomers at once. Where the store was heard before, a short outage is sat out."""
        now = self._room.clock.now()
        self._said.failing, self._said.error = self._said.failing or now, error
        # That attempt is being undone: the next one needs a token of its own.
        waiter.token = mint(waiter.wish.worker, waiter.owner)
        if not self._said.held or now - self._said.failing > OPERATION:
            for other in [other for other in self.waiters if other.parcel is None]:
                del self.waiters[other]
                if not other.future.done():
                    other.future.set_exception(fresh(error))

    def _landed(self) -> None:
        self._flying -= 1
        if not self._flying:
            self._rest()

    def _rest(self) -> None:
        if not self.waiters:
            self._quiet()
            self._room.gone((self._key, self._mode))
            if self.seated:
                place = self._room.courier.pace.place / 1000
                # Unless somebody came since: that one has the seat again, and wants to keep it.
                came = partial(self._room.__contains__, (self._key, self._mode))
                self._room.courier.insist(self._key, Leave(self._seat), place, came)
        elif self._alarm <= self._room.clock.now() or not (self._said.held or self._said.failing):
            self._ask_on()
        elif self._timer is None:
            self._sleep(min(self._pause(), self._alarm - self._room.clock.now()))

    def _pause(self) -> float:
        """How long to sleep, in seconds, if nothing wakes us."""
        if self._said.failing:
            return min(0.1 + (self._room.clock.now() - self._said.failing) / 2, 1.0) * random.uniform(0.8, 1.2)
        if self._run.on:
            return max(0.0, self._run.left(self._room.clock.now()))
        pause = self._room.courier.pace.place / 3000
        if self._said.retry:
            pause = min(pause, self._said.retry / 1000 + 0.001)
        if self._room.polls:
            wish = next(iter(self.waiters)).wish
            pause = min(pause, wish.retry_interval * random.uniform(1 - wish.retry_jitter, 1 + wish.retry_jitter))
        return pause

    def _sleep(self, seconds: float) -> None:
        self._quiet()
        self._alarm = self._room.clock.now() + seconds
        self._timer = self._room.clock.call_later(seconds, self._rang)

    def _rang(self) -> None:
        self._timer = None
        if self.waiters and not self._flying:
            self._ask(everybody=False)

    def _quiet(self) -> None:
        self._alarm = math.inf
        if self._timer:
            self._timer.cancel()
            self._timer = None
