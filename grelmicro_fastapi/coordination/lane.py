"""A lane to the store: its batches leave in order, and are never carried by a caller.

So cancelling a caller never touches a socket or a transaction. An idle lane sends at once; what arrives meanwhile
travels together next. Where the store can send without waiting, a batch leaves in the step that makes it, and the next
one may leave before the first is answered. Otherwise a task of the lane carries them one by one, which lives only as
long as there is something to carry.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context

from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.coordination.futures import Bound
from grelmicro_fastapi.coordination.journeys import Journey, Journeys
from grelmicro_fastapi.coordination.pace import Pace
from grelmicro_fastapi.coordination.parcel import OPERATION, Parcel, broken_promise, closed, silence
from grelmicro_fastapi.coordination.store import Answer, Ask, Store, SwiftStore
from grelmicro_fastapi.errors import BackendError

BATCH = 128
"""Commands that travel together at the most."""

ABREAST = 2
"""Batches that are under way at the most: while the store works on one, we make another."""

CROWD = 16
"""From so many commands on half of those that wait follow what is under way, so that neither we nor the store idle."""

_log = logging.getLogger("grelmicro_fastapi.coordination")


class Lane:
    """Sends what it is given, batch by batch. `deliver` gets every answer, `rests` is called when nothing is left.

    So many batches are `abreast` under way at the most, where the store allows it.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        pace: Pace,
        deliver: Callable[[Parcel, Answer], object],
        rests: Callable[[], object],
        abreast: int = ABREAST,
    ) -> None:
        self._store = store
        self._abreast = abreast
        self._clock = clock
        self._pace = pace
        self._deliver = deliver
        self._rests = rests
        self._waiting: deque[Parcel] = deque()
        self._journeys = Journeys(store, clock, self._arrived) if isinstance(store, SwiftStore) else None
        self._soon = False
        self._batch: list[Parcel] = []
        self._delivering = False
        self._bound: Bound | None = None
        self.task: asyncio.Task[None] | None = None
        """Carries batches while there are any that cannot leave at once."""

    @property
    def busy(self) -> bool:
        """Is anything under way, or waiting to be?"""
        return bool(self._journeys or self.task or self._waiting or self._delivering)

    def take(self, parcel: Parcel, first: bool) -> None:
        """Send this with the next batch, or with `first` before all that waits here. `go` sends it."""
        if first:
            self._waiting.appendleft(parcel)
        else:
            self._waiting.append(parcel)
        if parcel.bound < OPERATION:
            # A batch that hangs must not use up the time of a more urgent command.
            if self._bound:
                self._bound.hasten(parcel.bound)
            elif self._journeys:
                self._journeys.hasten(parcel.bound)

    def go(self) -> None:
        """Send what waits, as far as there is room for it under way."""
        if self.task or self._delivering or self._soon:
            return
        if self._journeys is None:
            self._start()
        elif not self._journeys:
            self._depart()
        elif self._may_follow:
            # With all that is asked for in this turn of the loop.
            self._soon = True
            asyncio.get_running_loop().call_soon(self._depart, context=Context())

    def close(self) -> None:
        """Give up what is under way and what waits."""
        if self.task:
            self.task.cancel()
        else:
            self._fail_all()

    def _depart(self) -> None:
        self._soon = False
        if not self.task and self._next():
            self._start()

    def _next(self) -> bool:
        """Let batches leave at once while they can and there is room. True if a task has to carry the one loaded."""
        while self._waiting and (not self._journeys or self._may_follow):
            batch = self._load()
            if not batch or (self._journeys is not None and self._journeys.start(batch, self._asks(batch))):
                continue
            if self._journeys:
                # Nothing may overtake what is under way.
                self._unload(batch)
                break
            self._batch = batch
            return True
        self._rests()
        return False

    def _arrived(self, journey: Journey, answers: Sequence[Answer] | BackendError) -> None:
        if not isinstance(answers, BackendError):
            self._pace.took(self._clock.now() - journey.left)
        self._hand_over(journey.batch, answers)
        if self._journeys:
            # Behind the other, and with what they ask for who are answered now.
            self.go()
        else:
            self._depart()

    def _start(self) -> None:
        # Without a context of its own, the task would keep alive whatever its first caller could see.
        task = asyncio.get_running_loop().create_task(self._carry_on(), context=Context())
        # Where tasks begin at once, it may be over already.
        if not task.done():
            self.task = task
            task.add_done_callback(self._ended)

    async def _carry_on(self) -> None:
        while self._batch or self._next():
            answers = await self._carry(self._batch)
            batch, self._batch = self._batch, []
            self._hand_over(batch, answers)
        self.task = None
        self._rests()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Whoever cancelled it, and were it before its first step: nobody must wait for ever."""
        if self.task is task:
            self.task = None
            self._fail_all()
            self._rests()

    @property
    def _may_follow(self) -> bool:
        # A few wait: what hangs shall not take them along, nor use up their leases.
        return self._journeys is not None and len(self._journeys) < self._abreast and len(self._waiting) >= CROWD

    def _load(self) -> list[Parcel]:
        batch: list[Parcel] = []
        now, size = self._clock.now(), len(self._waiting)
        most = min(BATCH, size // 2 if self._journeys else size)
        while self._waiting and len(batch) < most:
            parcel = self._waiting.popleft()
            if parcel.wanted:
                parcel.left = now
                batch.append(parcel)
        return batch

    def _unload(self, batch: list[Parcel]) -> None:
        for parcel in batch:
            parcel.left = None
        self._waiting.extendleft(reversed(batch))

    def _asks(self, batch: list[Parcel]) -> list[Ask]:
        claim = self._pace.claim
        return [Ask(parcel.key, parcel.command, claim) for parcel in batch]

    async def _carry(self, batch: list[Parcel]) -> Sequence[Answer] | BackendError:
        asks = self._asks(batch)
        started = self._clock.now()
        try:
            with Bound(self._clock, min(parcel.bound for parcel in batch)) as self._bound:
                answers = await self._store.apply(asks)
        except BackendError as error:
            return error
        except TimeoutError:
            return silence(self._clock.now() - started)
        except Exception as error:
            return broken_promise("apply", error)
        finally:
            self._bound = None
        self._pace.took(self._clock.now() - started)
        return answers

    def _fail_all(self) -> None:
        under_way = [] if self._journeys is None else self._journeys.abandon()
        every = [*self._batch, *[parcel for journey in under_way for parcel in journey.batch], *self._waiting]
        self._batch = []
        self._waiting.clear()
        for parcel in every:
            if parcel.wanted or parcel.left is not None:
                self._give(parcel, closed(parcel.left is not None))

    def _hand_over(self, batch: list[Parcel], answers: Sequence[Answer] | BackendError) -> None:
        if not isinstance(answers, BackendError) and len(answers) != len(batch):
            answers = broken_promise("a call", RuntimeError(f"{len(answers)} answers to {len(batch)} commands"))
        each = [answers] * len(batch) if isinstance(answers, BackendError) else answers
        # What is asked because of these answers travels together.
        self._delivering = True
        for parcel, answer in zip(batch, each, strict=True):
            self._give(parcel, answer)
        self._delivering = False

    def _give(self, parcel: Parcel, answer: Answer) -> None:
        try:
            self._deliver(parcel, answer)
        except Exception:
            # A fault in the code of one caller must not stop the others.
            _log.exception("the answer about %r could not be handed over", parcel.key)
