"""A lane to the store: one batch is under way at a time, and never carried by a caller.

So cancelling a caller never touches a socket or a transaction. An idle lane sends at once; what arrives meanwhile
travels together next. Where the store can send without waiting, the batch leaves in the step that makes it; otherwise
a task of the lane carries it, which lives only as long as there is something to carry.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context

from grelmicro_fastapi.coordination.clock import Clock, Timer
from grelmicro_fastapi.coordination.futures import Bound
from grelmicro_fastapi.coordination.pace import Pace
from grelmicro_fastapi.coordination.parcel import OPERATION, Parcel, broken_promise, closed, silence
from grelmicro_fastapi.coordination.store import Answer, Ask, Flight, Store, SwiftStore
from grelmicro_fastapi.errors import BackendError

BATCH = 128
"""Commands that travel together at the most."""

_log = logging.getLogger("grelmicro_fastapi.coordination")


class Lane:
    """Sends what it is given, batch by batch. `deliver` gets every answer, `rests` is called when nothing is left."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        pace: Pace,
        deliver: Callable[[Parcel, Answer], object],
        rests: Callable[[], object],
    ) -> None:
        self._store = store
        swift = store if isinstance(store, SwiftStore) else None
        self._send = swift.send if swift else None
        self._longest = min(OPERATION, swift.operation) if swift else OPERATION
        self._clock = clock
        self._pace = pace
        self._deliver = deliver
        self._rests = rests
        self._waiting: deque[Parcel] = deque()
        self._batch: list[Parcel] = []
        self._left = 0.0
        self._flight: Flight | None = None
        self._delivering = False
        self._bound: Bound | None = None
        self._until = 0.0
        self._watch: Timer | None = None
        self._alarm = 0.0
        self.task: asyncio.Task[None] | None = None
        """Carries batches while there are any that cannot leave at once."""

    @property
    def busy(self) -> bool:
        """Is anything under way, or waiting to be?"""
        return bool(self._flight or self.task or self._waiting or self._delivering)

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
            elif self._flight:
                self._look_at(min(self._until, self._clock.now() + parcel.bound))

    def go(self) -> None:
        """Send what waits, if nothing is under way."""
        if self._flight or self.task or self._delivering:
            return
        if not self._send or self._next():
            self._start()

    def close(self) -> None:
        """Give up what is under way and what waits."""
        if self._flight:
            self._flight.abandon()
            self._flight = None
        self._quiet()
        if self.task:
            self.task.cancel()
        else:
            self._fail_all()

    def _next(self) -> bool:
        """Load a batch, and let it leave at once if it can. True if a task has to carry it."""
        batch = self._batch = self._load()
        if not batch:
            self._rests()
            return False
        if not self._send:
            return True
        self._left = self._clock.now()
        self._flight = self._send(self._asks(batch), self._landed)
        if not self._flight:
            return True
        self._look_at(self._left + min(self._longest, *[parcel.bound for parcel in batch]))
        return False

    def _landed(self, answers: Sequence[Answer] | BackendError) -> None:
        if not self._flight:
            return
        self._flight = None
        if not isinstance(answers, BackendError):
            self._pace.took(self._clock.now() - self._left)
        self._hand_over(answers)
        if self._next():
            self._start()

    def _start(self) -> None:
        # Without a context of its own, the task would keep alive whatever its first caller could see.
        task = asyncio.get_running_loop().create_task(self._carry_on(), context=Context())
        # Where tasks begin at once, it may be over already.
        if not task.done():
            self.task = task
            task.add_done_callback(self._ended)

    async def _carry_on(self) -> None:
        while self._batch or self._next():
            self._hand_over(await self._carry(self._batch))
        self.task = None
        self._rests()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Whoever cancelled it, and were it before its first step: nobody must wait for ever."""
        if self.task is task:
            self.task = None
            self._fail_all()
            self._rests()

    def _look_at(self, until: float) -> None:
        """Give what is under way up at that time. One timer serves many batches: it rings early, and looks again."""
        self._until = until
        if self._watch and self._alarm <= until:
            return
        self._quiet()
        self._alarm = until
        self._watch = self._clock.call_later(until - self._clock.now(), self._look)

    def _look(self) -> None:
        self._watch = None
        if not self._flight:
            return
        now = self._clock.now()
        if now + 0.001 < self._until:
            self._look_at(self._until)
            return
        self._flight.abandon()
        self._landed(silence(now - self._left))

    def _quiet(self) -> None:
        if self._watch:
            self._watch.cancel()
            self._watch = None

    def _load(self) -> list[Parcel]:
        batch: list[Parcel] = []
        now = self._clock.now()
        while self._waiting and len(batch) < BATCH:
            parcel = self._waiting.popleft()
            if parcel.wanted:
                parcel.left = now
                batch.append(parcel)
        return batch

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
        batch, waiting, self._batch = self._batch, list(self._waiting), []
        self._waiting.clear()
        for parcel in (*batch, *waiting):
            if parcel.wanted or parcel.left is not None:
                self._give(parcel, closed(parcel.left is not None))

    def _hand_over(self, answers: Sequence[Answer] | BackendError) -> None:
        batch, self._batch = self._batch, []
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
