"""Carries commands to the store.

One batch is under way per lane, carried by the lane's own task: cancelling a caller never touches a socket or a
transaction. An idle lane sends at once; what arrives meanwhile travels together next. An acquire whose outcome is
unknown, or that nobody waits for any more, is followed by its `Undo`.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Hashable

from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.coordination.futures import settle, sleep
from grelmicro_fastapi.coordination.pace import Pace
from grelmicro_fastapi.coordination.state import GRAVE, Acquire, Command, Reply, Undo, Verdict
from grelmicro_fastapi.coordination.store import Answer, Ask, DirectStore, Store
from grelmicro_fastapi.errors import BackendError

OPERATION = 5.0
"""Seconds that one call to a store may take."""
BATCH = 128
"""Commands that travel together at the most."""

_log = logging.getLogger("grelmicro_fastapi.coordination")


class Parcel:
    """One command on its way. `done` is called once with the answer, unless the parcel was withdrawn before it left."""

    __slots__ = ("bound", "command", "done", "key", "landed", "sent", "wanted")

    def __init__(self, key: str, command: Command, done: Callable[[Answer], object], bound: float) -> None:
        self.key = key
        self.command = command
        self.done = done
        self.bound = bound
        self.sent = False
        self.landed = False
        self.wanted = True

    def withdraw(self) -> None:
        """Nobody waits for it any more: not sent if it has not left, and an acquire is undone."""
        self.wanted = False


class Courier:
    """Takes commands from everybody on one loop, and undoes what was orphaned."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.pace = Pace(clock, store.place)
        self.at_once = store.at_once if isinstance(store, DirectStore) else None
        """Carries a command in the caller's own step, where the store can: then nothing is ever under way."""
        self._lanes: dict[Hashable, _Lane] = {}
        self._errands: set[asyncio.Task[None]] = set()

    async def ask(self, key: str, command: Command, bound: float = OPERATION, *, lane: str = "") -> Reply:
        """Ask, and wait for the answer no longer than `bound` seconds.

        Raises `BackendError` if there is none by then. An acquire is undone then, and when the caller is cancelled.
        """
        if self.at_once:
            return judge(self.at_once(Ask(key, command, self.pace.claim)))
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        parcel = self.post(key, command, lambda got: settle(answer, got), lane=lane)
        timer = self.clock.call_later(bound, lambda: settle(answer, _silence(bound)))
        try:
            got = await answer
        except BaseException:
            # The answer may have come in the same moment as the cancellation.
            if answer.done() and not answer.cancelled() and isinstance(command, Acquire):
                self.undo(key, command.token, command.ttl / 1000)
            raise
        finally:
            timer.cancel()
            # Does nothing to a parcel that was answered.
            parcel.withdraw()
        return judge(got)

    def post(
        self,
        key: str,
        command: Command,
        done: Callable[[Answer], object],
        *,
        lane: str = "",
        first: bool = False,
        bound: float = OPERATION,
    ) -> Parcel:
        """Send without waiting.

        `lane` names a lane apart from the others, `first` jumps the queue of its lane. The batch of this command is
        given up after `bound` seconds, so only what rides in a lane of its own may ask for less than the usual.
        """
        parcel = Parcel(key, command, done, bound)
        if self.at_once:
            parcel.sent = True
            self.answered(parcel, self.at_once(Ask(key, command, self.pace.claim)))
            return parcel
        name = (lane, self.store.lane(key))
        road = self._lanes.get(name)
        if road is None:
            road = self._lanes[name] = _Lane(self)
        road.take(parcel, first)
        return parcel

    def undo(self, key: str, token: str, lasts: float) -> None:
        """Make it as if that token had never been granted; insists until its lease, and its request, must be dead."""
        self.insist(key, Undo(token), max(lasts, GRAVE / 1000))

    def insist(self, key: str, command: Command, lasts: float) -> None:
        """Send, again if there is no answer, for so many seconds. Tracked: `close` waits for it."""

        def answered(answer: Answer) -> None:
            if isinstance(answer, BackendError):
                self._track(self._repeat(key, command, self.clock.now() + lasts))

        self.post(key, command, answered, first=isinstance(command, Undo))

    async def close(self, patience: float) -> None:
        """Let everything that is under way arrive, for so many seconds; then stop."""
        last: set[asyncio.Task[None]] = {*self._errands}
        last.update(lane.drained() for lane in self._lanes.values())
        if last:
            await asyncio.wait(last, timeout=patience)
        stopped = {*last, *self._errands, *(lane.task for lane in self._lanes.values())}
        self._lanes.clear()
        for task in stopped:
            task.cancel()
        await asyncio.gather(*stopped, return_exceptions=True)

    def answered(self, parcel: Parcel, answer: Answer) -> None:
        """Give an answer to whoever asked, after seeing to it that no acquire is left that nobody knows of."""
        command = parcel.command
        if isinstance(command, Acquire):
            unknown = isinstance(answer, BackendError) and answer.sent
            orphan = not parcel.wanted and isinstance(answer, Reply) and answer.verdict is Verdict.GRANTED
            if unknown or orphan:
                self.undo(parcel.key, command.token, command.ttl / 1000)
        parcel.landed = True
        parcel.done(answer)

    def _track(self, errand: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _repeat(self, key: str, command: Command, until: float) -> None:
        pause = 0.05
        while self.clock.now() < until:
            await sleep(self.clock, pause)
            pause = min(2 * pause, 1.0)
            with contextlib.suppress(BackendError):
                await self.ask(key, command)
                return
        _log.warning("the store did not take a %s for one lease: the lease has ended by itself", type(command).__name__)


class _Lane:
    """Sends batches one after the other, in a task of its own."""

    def __init__(self, courier: Courier) -> None:
        self._courier = courier
        self._waiting: deque[Parcel] = deque()
        self._idle: asyncio.Future[None] | None = None
        self._drained: asyncio.Event = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._run())

    def take(self, parcel: Parcel, first: bool) -> None:
        if first:
            self._waiting.appendleft(parcel)
        else:
            self._waiting.append(parcel)
        self._drained.clear()
        if self._idle and not self._idle.done():
            self._idle.set_result(None)

    def drained(self) -> "asyncio.Task[None]":
        async def wait() -> None:
            await self._drained.wait()

        return asyncio.get_running_loop().create_task(wait())

    async def _run(self) -> None:
        while True:
            if not self._waiting:
                self._drained.set()
                self._idle = asyncio.get_running_loop().create_future()
                await self._idle
            batch: list[Parcel] = []
            while self._waiting and len(batch) < BATCH:
                parcel = self._waiting.popleft()
                if parcel.wanted:
                    parcel.sent = True
                    batch.append(parcel)
            if batch:
                answers = await self._carry(batch)
                for parcel, answer in zip(batch, answers, strict=True):
                    self._courier.answered(parcel, answer)

    async def _carry(self, batch: list[Parcel]) -> "list[Answer]":
        courier = self._courier
        asks = [Ask(parcel.key, parcel.command, courier.pace.claim) for parcel in batch]
        started = courier.clock.now()
        bound = min(parcel.bound for parcel in batch)
        late = False

        def give_up() -> None:
            nonlocal late
            late = True
            self.task.cancel()

        timer = courier.clock.call_later(bound, give_up)
        try:
            answers = list(await courier.store.apply(asks))
        except asyncio.CancelledError:
            if not late or self.task.uncancel():
                raise
            return [_silence(bound)] * len(batch)
        except BackendError as error:
            return [error] * len(batch)
        except Exception as error:
            _log.exception("a store broke its promise: only BackendError may leave apply")
            wrapped = BackendError(f"the store failed: {type(error).__name__}")
            wrapped.__cause__ = error
            return [wrapped] * len(batch)
        finally:
            timer.cancel()
        courier.pace.took(courier.clock.now() - started)
        return answers


def judge(answer: Answer) -> Reply:
    """Return the reply, or raise: no verdict, or one of a newer law."""
    if isinstance(answer, BackendError):
        raise answer
    if answer.verdict is Verdict.NEWER:
        raise BackendError("a newer release of this library wrote this lock: upgrade this process")
    return answer


def _silence(bound: float) -> BackendError:
    return BackendError(f"the store did not answer within {bound:g} s")
