"""A lane to the store: one batch is under way at a time, carried by a task of the lane's own.

So cancelling a caller never touches a socket or a transaction. An idle lane sends at once; what arrives meanwhile
travels together next. The task lives only as long as there is something to carry.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Protocol

from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.coordination.futures import Bound
from grelmicro_fastapi.coordination.pace import Pace
from grelmicro_fastapi.coordination.state import Command
from grelmicro_fastapi.coordination.store import Answer, Ask, Store
from grelmicro_fastapi.errors import BackendError

OPERATION = 5.0
"""Seconds that one call to a store may take."""
BATCH = 128
"""Commands that travel together at the most."""

_log = logging.getLogger("grelmicro_fastapi.coordination")


class Asker(Protocol):
    """The future of a caller who waits."""

    def done(self) -> bool:
        """Is the wait over, one way or another?"""
        ...


class Parcel:
    """One command on its way.

    `done` is called once with the answer, unless the `asker` was settled before it left. `left` is the clock's time
    just before it was sent, or None. Its batch is given up after `bound` seconds.
    """

    __slots__ = ("asker", "bound", "command", "done", "key", "left")

    def __init__(
        self,
        key: str,
        command: Command,
        done: Callable[[Answer], object],
        bound: float = OPERATION,
        asker: Asker | None = None,
    ) -> None:
        self.key = key
        self.command = command
        self.done = done
        self.bound = bound
        self.asker = asker
        self.left: float | None = None

    @property
    def wanted(self) -> bool:
        """Does anybody still wait for the answer? One who is cancelled does not, from that very moment on."""
        return self.asker is None or not self.asker.done()


class Lane:
    """Sends what it is given, batch by batch. `deliver` gets every answer, `empty` is called when it has nothing."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        pace: Pace,
        deliver: Callable[[Parcel, Answer], object],
        empty: Callable[[], object],
    ) -> None:
        self._store = store
        self._clock = clock
        self._pace = pace
        self._deliver = deliver
        self._empty = empty
        self._waiting: deque[Parcel] = deque()
        self._bound: Bound | None = None

    def take(self, parcel: Parcel, first: bool) -> None:
        """Send this next, or with `first` before all that waits here."""
        if first:
            self._waiting.appendleft(parcel)
        else:
            self._waiting.append(parcel)
        if self._bound and parcel.bound < OPERATION:
            # A batch that hangs must not use up the time of a more urgent command.
            self._bound.hasten(parcel.bound)

    def start(self) -> "asyncio.Task[None]":
        """Begin. The caller keeps the task."""
        # Without a context of its own, the task would keep alive whatever its first caller could see.
        return asyncio.get_running_loop().create_task(self._run(), context=Context())

    async def _run(self) -> None:
        batch: list[Parcel] = []
        try:
            while self._waiting:
                if batch := self._load():
                    answers = await self._carry(batch)
                    arrived, batch = batch, []
                    for parcel, answer in zip(arrived, answers, strict=True):
                        self._hand_over(parcel, answer)
        except asyncio.CancelledError:
            self._empty()
            for parcel in (*batch, *self._waiting):
                if parcel.wanted or parcel.left is not None:
                    self._hand_over(parcel, closed(parcel.left is not None))
            raise
        self._empty()

    def _load(self) -> list[Parcel]:
        batch: list[Parcel] = []
        now = self._clock.now()
        while self._waiting and len(batch) < BATCH:
            parcel = self._waiting.popleft()
            if parcel.wanted:
                parcel.left = now
                batch.append(parcel)
        return batch

    async def _carry(self, batch: list[Parcel]) -> Sequence[Answer]:
        claim = self._pace.claim
        asks = [Ask(parcel.key, parcel.command, claim) for parcel in batch]
        started = self._clock.now()
        try:
            with Bound(self._clock, min(parcel.bound for parcel in batch)) as self._bound:
                answers = await self._store.apply(asks)
            if len(answers) != len(asks):
                raise RuntimeError(f"{len(answers)} answers to {len(asks)} commands")
        except BackendError as error:
            return [error] * len(batch)
        except TimeoutError:
            return [silence(self._clock.now() - started)] * len(batch)
        except Exception as error:
            return [broken_promise("apply", error)] * len(batch)
        finally:
            self._bound = None
        self._pace.took(self._clock.now() - started)
        return answers

    def _hand_over(self, parcel: Parcel, answer: Answer) -> None:
        try:
            self._deliver(parcel, answer)
        except Exception:
            # A fault in the code of one caller must not stop the others.
            _log.exception("the answer about %r could not be handed over", parcel.key)


def broken_promise(call: str, error: Exception) -> BackendError:
    """Log what a store must not raise, and say that it failed."""
    _log.error("a store broke its promise: only BackendError may leave %s", call, exc_info=error)
    failure = BackendError(f"the store failed: {type(error).__name__}")
    failure.__cause__ = error
    return failure


def silence(seconds: float) -> BackendError:
    """Say that no answer came."""
    return BackendError(f"the store did not answer within {seconds:.3g} s")


def closed(sent: bool) -> BackendError:
    """Say that no answer can come any more."""
    error = BackendError("the connection to the store is closed: open the provider again")
    error.sent = sent
    return error
