"""Batches that are under way without a task to carry them, in the order in which they left."""

from collections.abc import Callable, Sequence
from functools import partial

from grelmicro_fastapi.coordination.clock import Clock, Timer
from grelmicro_fastapi.coordination.parcel import OPERATION, Parcel, silence
from grelmicro_fastapi.coordination.store import Answer, Ask, Flight, SwiftStore
from grelmicro_fastapi.errors import BackendError

Arrived = Callable[["Journey", Sequence[Answer] | BackendError], None]
"""Gets the answers to a batch, or why there are none."""


class Journey:
    """One batch, which left at the time `left` and is given up at `until`."""

    __slots__ = ("batch", "flight", "left", "until")

    def __init__(self, batch: list[Parcel], left: float, until: float) -> None:
        self.batch = batch
        self.left = left
        self.until = until
        self.flight: Flight | None = None


class Journeys:
    """All of one lane. Of each, `arrived` is told once, unless all are abandoned before."""

    def __init__(self, store: SwiftStore, clock: Clock, arrived: Arrived) -> None:
        self._send = store.send
        self._longest = min(OPERATION, store.operation)
        self._clock = clock
        self._arrived = arrived
        self._under_way: list[Journey] = []
        self._watch: Timer | None = None
        self._alarm = 0.0

    def __len__(self) -> int:
        return len(self._under_way)

    def start(self, batch: list[Parcel], asks: Sequence[Ask]) -> bool:
        """Did this batch leave, in this very step and behind all others?"""
        now = self._clock.now()
        journey = Journey(batch, now, now + min(self._longest, *[parcel.bound for parcel in batch]))
        before = self._under_way[-1].flight if self._under_way else None
        send = before.follow if before else self._send
        journey.flight = send(asks, partial(self._landed, journey))
        if not journey.flight:
            return False
        self._under_way.append(journey)
        self._look_at(journey.until)
        return True

    def hasten(self, seconds: float) -> None:
        """Give all of them up in so many seconds, should that be earlier."""
        until = self._clock.now() + seconds
        for journey in self._under_way:
            if until < journey.until:
                journey.until = until
                self._look_at(until)

    def abandon(self) -> list[Journey]:
        """Give all of them up, now, and return them."""
        given_up, self._under_way = self._under_way, []
        for journey in given_up:
            if journey.flight:
                journey.flight.abandon()
        self._quiet()
        return given_up

    def _landed(self, journey: Journey, answers: Sequence[Answer] | BackendError) -> None:
        if journey in self._under_way:
            self._under_way.remove(journey)
            # The flight knows whom to tell, so it is not left to the garbage collector.
            journey.flight = None
            self._arrived(journey, answers)

    def _look_at(self, until: float) -> None:
        """Look then for what is late. One timer serves many batches: it rings early, and looks again."""
        if self._watch and self._alarm <= until:
            return
        self._quiet()
        self._alarm = until
        self._watch = self._clock.call_later(until - self._clock.now(), self._look)

    def _look(self) -> None:
        self._watch = None
        now = self._clock.now()
        for journey in [journey for journey in self._under_way if journey.until <= now + 0.001]:
            if journey.flight:
                journey.flight.abandon()
            self._landed(journey, silence(now - journey.left))
        if self._under_way:
            self._look_at(min(journey.until for journey in self._under_way))

    def _quiet(self) -> None:
        if self._watch:
            self._watch.cancel()
            self._watch = None
