"""Carries commands to the store, and undoes what was orphaned.

An acquire whose outcome is unknown, or that nobody waits for any more, is followed by its `Undo`: no way out of an
acquire leaves anything behind as long as the store can be reached.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Hashable
from contextvars import Context
from functools import partial

from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.coordination.futures import Bound, Patience, settle, sleep, within
from grelmicro_fastapi.coordination.lane import ABREAST, Lane
from grelmicro_fastapi.coordination.pace import Pace
from grelmicro_fastapi.coordination.parcel import OPERATION, Asker, Parcel, broken_promise, closed, silence
from grelmicro_fastapi.coordination.state import GRAVE, Acquire, Command, Reply, Undo, Verdict
from grelmicro_fastapi.coordination.store import Answer, DirectStore, Snapshot, Store
from grelmicro_fastapi.errors import BackendError

_log = logging.getLogger("grelmicro_fastapi.coordination")


class Courier:
    """Takes commands from everybody on one loop."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.pace = Pace(clock, store.place)
        self.patience = Patience(clock, OPERATION)
        """Ends the waits for answers that last as long as a call may."""
        self.at_once = store.at_once if isinstance(store, DirectStore) else None
        """Carries a command in the caller's own step, where the store can: then nothing is ever under way."""
        self._lanes: dict[Hashable, Lane] = {}
        self._crowded = 256
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: asyncio.Future[None] | None = None
        self._closed = False

    async def ask(self, key: str, command: Command, bound: float = OPERATION, *, lane: str = "") -> Reply:
        """Ask, and wait for the answer no longer than `bound` seconds.

        Raises `BackendError` if there is none by then. An acquire is undone then, and when the caller is cancelled.
        """
        if self.at_once:
            return judge(self.at_once(key, command, self.pace.claim))
        answer: asyncio.Future[Answer | None] = self.patience.future()
        self.post(key, command, partial(settle, answer), lane=lane, asker=answer)
        try:
            await (answer if bound == OPERATION else within(self.clock, bound, answer))
        except BaseException:
            answer.cancel()
            # The grant may have come in the same moment as the cancellation.
            if not answer.cancelled() and isinstance(command, Acquire) and _granted(answer.result()):
                self.undo(key, command.token, command.ttl / 1000)
            raise
        return judge(answer.result() or silence(bound))

    async def peek(self, key: str) -> Snapshot:
        """Read one state. Raises `BackendError` if the store does not show it in the usual time."""
        if self.at_once:
            return await self.store.peek(key)
        if self._closed:
            raise closed(sent=False)
        found: asyncio.Future[Snapshot | BackendError | None] = self.patience.future()
        self._track(self._look(key, found))
        await found
        got = found.result() or silence(OPERATION)
        if isinstance(got, BackendError):
            raise fresh(got)
        return got

    def post(
        self,
        key: str,
        command: Command,
        done: Callable[[Answer], object],
        *,
        lane: str = "",
        first: bool = False,
        bound: float = OPERATION,
        asker: Asker | None = None,
        later: bool = False,
    ) -> Parcel:
        """Send without waiting. `done` is called with the answer, perhaps before this returns.

        `lane` names a lane apart from the others, `first` jumps the queue of its lane. The batch of this command is
        given up after `bound` seconds, so only what rides in a lane of its own may ask for less than the usual. Once
        `asker` is done nobody wants it any more: it is not sent if it has not left, and an acquire is undone. With
        `later` it waits for the next one of its lane, or for `go`, to travel together.
        """
        parcel = Parcel(key, command, done, bound, asker)
        if self.at_once:
            parcel.left = self.clock.now()
            self._deliver(parcel, self.at_once(key, command, self.pace.claim))
        elif self._closed:
            self._deliver(parcel, closed(sent=False))
        else:
            road = self._lane(lane, key)
            road.take(parcel, first)
            if not later:
                road.go()
        return parcel

    def go(self, key: str) -> None:
        """Send what waits to travel together."""
        if not self.at_once and not self._closed:
            self._lane("", key).go()

    def undo(self, key: str, token: str, lasts: float) -> None:
        """Make it as if that token had never been granted; insists until its lease, and its request, must be dead."""
        self.insist(key, Undo(token), max(lasts, GRAVE / 1000))

    def insist(self, key: str, command: Command, lasts: float, unless: Callable[[], bool] = lambda: False) -> None:
        """Send, and send again while there is no answer, for so many seconds or until `unless` is true.

        `close` waits for it.
        """

        def answered(answer: Answer) -> None:
            if isinstance(answer, BackendError) and not self._closed:
                self._track(self._repeat(key, command, self.clock.now() + lasts, unless))

        self.post(key, command, answered, first=isinstance(command, Undo))

    async def rest(self, patience: float) -> None:
        """Let everything that is under way arrive, for so many seconds."""
        if self._idle is None or self._idle.done():
            self._idle = asyncio.get_running_loop().create_future()
        self._rests()
        await within(self.clock, patience, asyncio.shield(self._idle))

    async def close(self, patience: float) -> None:
        """Let everything that is under way arrive, for so many seconds; then stop. Safe to call twice."""
        try:
            await self.rest(patience)
        finally:
            self._closed = True
            self.patience.close()
            carrying = [lane.task for lane in self._lanes.values() if lane.task]
            for lane in self._lanes.values():
                lane.close()
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*carrying, *self._tasks, return_exceptions=True)

    def _deliver(self, parcel: Parcel, answer: Answer) -> None:
        """Give an answer to whoever asked, after seeing to it that no acquire is left that nobody knows of."""
        command = parcel.command
        if isinstance(command, Acquire):
            unknown = isinstance(answer, BackendError) and answer.sent
            if unknown or (not parcel.wanted and _granted(answer)):
                self.undo(parcel.key, command.token, command.ttl / 1000)
        parcel.done(answer)

    async def _look(self, key: str, found: "asyncio.Future[Snapshot | BackendError | None]") -> None:
        try:
            with Bound(self.clock, OPERATION):
                settle(found, await self.store.peek(key))
        except BackendError as error:
            settle(found, error)
        except TimeoutError:
            settle(found, silence(OPERATION))
        except Exception as error:
            settle(found, broken_promise("peek", error))

    def _lane(self, lane: str, key: str) -> Lane:
        name = (lane, self.store.lane(key))
        road = self._lanes.get(name)
        if road is None:
            if len(self._lanes) >= self._crowded:
                # Where each key has a lane of its own there is no end of them.
                self._lanes = {name: lane for name, lane in self._lanes.items() if lane.busy}
                self._crowded = max(256, 2 * len(self._lanes))
            # In the lanes apart nobody waits, and few but large batches cost least.
            abreast = 1 if lane else ABREAST
            road = self._lanes[name] = Lane(self.store, self.clock, self.pace, self._deliver, self._rests, abreast)
        return road

    def _track(self, errand: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(errand, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._rests()

    def _rests(self) -> None:
        """Something ended. If that was the last, whoever closes us need not wait any longer."""
        if self._idle and not self._tasks and not any(lane.busy for lane in self._lanes.values()):
            settle(self._idle, None)

    async def _repeat(self, key: str, command: Command, until: float, unless: Callable[[], bool]) -> None:
        pause = 0.05
        while self.clock.now() < until:
            await sleep(self.clock, pause)
            pause = min(2 * pause, 1.0)
            if unless():
                return
            with contextlib.suppress(BackendError):
                await self.ask(key, command)
                return
        _log.warning("the store did not take a %s until its lease must have ended", type(command).__name__)


def judge(answer: Answer) -> Reply:
    """Return the reply, or raise: no verdict, or one of a newer law."""
    if isinstance(answer, BackendError):
        raise fresh(answer)
    if answer.verdict is Verdict.NEWER:
        raise BackendError("a newer release of this library wrote this lock: upgrade this process")
    return answer


def fresh(error: BackendError) -> BackendError:
    """Say it once more. One failure may concern many, and notes and tracebacks of one are not for the others."""
    again = BackendError(*error.args)
    again.sent = error.sent
    again.__cause__ = error
    return again


def _granted(answer: Answer | None) -> bool:
    return isinstance(answer, Reply) and answer.verdict is Verdict.GRANTED
