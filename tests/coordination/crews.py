"""Processes of a fleet, each with a crew of its own, and the network between them and their store.

All of them live on the loop of the test, and on its clock.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

from grelmicro_fastapi.coordination.backend import Backend
from grelmicro_fastapi.coordination.crew import Crew
from grelmicro_fastapi.coordination.futures import sleep
from grelmicro_fastapi.coordination.lock import Lock
from grelmicro_fastapi.coordination.options import LockOptions
from grelmicro_fastapi.coordination.readwritelock import ReadWriteLock
from grelmicro_fastapi.coordination.rules import step
from grelmicro_fastapi.coordination.state import Acquire, Command, State, Vacate
from grelmicro_fastapi.coordination.store import Answer, Ask, Flight, Landed, Scope, Snapshot, Store, Woken
from grelmicro_fastapi.coordination.view import View
from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers.memory import MemoryProvider
from grelmicro_fastapi.testing.clock import ManualClock

T = TypeVar("T")


class Wire:
    """A store behind a network. What that does to messages is for the test to say."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.channel = store.channel
        self.place = store.place
        self.scope: Scope = store.scope
        self.going = 0.0
        """Seconds that a request is on its way."""
        self.coming = 0.0
        """Seconds that an answer is on its way."""
        self.open_ = asyncio.Event()
        self.open_.set()
        self.down = False
        """Nothing gets through, and everybody is told so."""
        self.loses: Callable[[Command], bool] = lambda command: False
        """Whose answers are lost: the command is applied, and the caller is told of a broken connection."""
        self.hangs: Callable[[Command], bool] = lambda command: False
        """Which requests never arrive, and nobody is told."""
        self.deaf = False
        """No wake gets through."""
        self.batches: list[list[Ask]] = []
        """What arrived at the store."""
        self.broken_off = 0
        """How many calls were cancelled."""

    async def open(self) -> None:
        """It is open."""

    async def close(self) -> None:
        """It may stay open."""

    def lane(self, key: str) -> Hashable:
        return self.store.lane(key)

    async def apply(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        try:
            await self._go(asks)
            self.batches.append(list(asks))
            answers = list(await self.store.apply(asks))
            if self.coming:
                await sleep(self.clock, self.coming)
        except asyncio.CancelledError:
            self.broken_off += 1
            raise
        return [
            BackendError("the connection broke") if self.loses(ask.command) else answer
            for ask, answer in zip(asks, answers, strict=True)
        ]

    async def peek(self, key: str) -> Snapshot:
        await self._go([])
        return await self.store.peek(key)

    def keys(self, prefix: str) -> AsyncIterator[str]:
        return self.store.keys(prefix)

    async def listen(self, woken: Woken) -> None:
        await self.store.listen(lambda wake: None if self.deaf else woken(wake))

    async def vacate(self) -> int:
        return await self.store.vacate()

    async def purge(self, idle: float) -> int:
        return await self.store.purge(idle)

    def sent(self, kind: type[Command] | None = None) -> int:
        """How many commands (of that kind) arrived."""
        return sum(kind is None or isinstance(ask.command, kind) for batch in self.batches for ask in batch)

    def kinds(self) -> Counter[str]:
        return Counter(type(ask.command).__name__ for batch in self.batches for ask in batch)

    async def _go(self, asks: Sequence[Ask]) -> None:
        await asyncio.sleep(0)
        if self.down:
            raise BackendError("the store is down")
        if any(self.hangs(ask.command) for ask in asks):
            await asyncio.get_running_loop().create_future()
        await self.open_.wait()
        if self.going:
            await sleep(self.clock, self.going)


class SwiftWire(Wire):
    """A store whose requests leave in the step that makes them, as those of Redis do."""

    operation = 5.0

    def send(self, asks: Sequence[Ask], landed: Landed) -> Flight | None:
        return _Flight(self, asks, landed)


class _Flight:
    def __init__(self, wire: Wire, asks: Sequence[Ask], landed: Landed, behind: "_Flight | None" = None) -> None:
        self.wire = wire
        self.abandoned = False
        self.task = asyncio.get_running_loop().create_task(self._fly(asks, landed, behind), context=Context())

    def follow(self, asks: Sequence[Ask], landed: Landed) -> Flight | None:
        return None if self.task.done() or self.abandoned else _Flight(self.wire, asks, landed, self)

    def abandon(self) -> None:
        self.abandoned = True
        self.task.cancel()

    async def _fly(self, asks: Sequence[Ask], landed: Landed, behind: "_Flight | None") -> None:
        if behind:
            await asyncio.wait([behind.task])
        try:
            if behind and behind.abandoned:
                raise BackendError("the connection broke")
            answers: Sequence[Answer] | BackendError = await self.wire.apply(asks)
        except BackendError as error:
            answers = error
        if not self.abandoned:
            landed(answers)


class Process:
    """One process of a fleet: what it is given as `backend=`, and the crew behind it."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.clock = clock
        self.crew = Crew(store, clock)
        self.backend = Backend("test")

    async def __aenter__(self) -> Self:
        self.backend.attach(asyncio.get_running_loop(), self.crew)
        self.crew.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        closing = asyncio.ensure_future(self.crew.close())
        while not closing.done():
            # What hangs is given up in time; what is real takes its own.
            await self.clock.advance(0 if self.crew.courier.at_once else 0.5)
            await asyncio.wait([closing], timeout=0.01)
        await closing
        self.backend.detach(asyncio.get_running_loop())

    def lock(self, name: str = "x", **options: Any) -> Lock:
        return Lock(name, backend=self.backend, **LockOptions(**options))

    def catalog(self, name: str = "x", **options: Any) -> ReadWriteLock:
        return ReadWriteLock(name, backend=self.backend, **LockOptions(**options))

    async def state(self, key: str = "rwlock:x") -> State:
        """What the store keeps, without the dead."""
        return await live(self.crew.store, key)


async def live(store: Store, key: str) -> State:
    state, now = await store.peek(key)
    step(state, Vacate(), now)
    return state


async def quiet(process: Process, key: str) -> None:
    """Until everything about this key that is under way has arrived, with what has to follow it."""
    # It waits its turn behind all that, and an undo goes before it.
    await process.crew.courier.ask(key, Vacate())


class Fleet:
    """Processes over one memory. Each reaches it by a wire, unless it is told to be in the same process as it."""

    wires: ClassVar[type[Wire]] = Wire

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = MemoryProvider(clock=self.clock)
        self.store = self.memory._store()

    @asynccontextmanager
    async def process(self) -> AsyncIterator[tuple[Process, Wire]]:
        wire = self.wires(self.memory._store(), self.clock)
        async with Process(wire, self.clock) as process:
            yield process, wire

    @asynccontextmanager
    async def direct(self) -> AsyncIterator[Process]:
        """A process that has the memory in itself."""
        async with Process(self.memory._store(), self.clock) as process:
            yield process

    async def state(self, key: str = "rwlock:x") -> State:
        return await live(self.store, key)

    async def passing(self, doing: Coroutine[Any, Any, T], step: float = 0.05) -> T:
        """Let time pass until it is done."""
        task = asyncio.create_task(doing)
        while not task.done():
            await self.clock.advance(step)
        return await task


def empty(state: State) -> bool:
    """Is nobody in it and nothing of anybody left, but for graves?"""
    return not (state.writer or state.readers or state.seats)


class Steps:
    """Does something before the n-th callback that the loop calls from now on."""

    def __init__(self, number: int, act: Callable[[], object]) -> None:
        self.count = 0
        self._number = number
        self._act = act
        self._loop: Any = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        for name in ("call_soon", "call_soon_threadsafe"):
            setattr(self._loop, name, self._counting(getattr(self._loop, name)))
        return self

    def __exit__(self, *exc: object) -> None:
        del self._loop.call_soon, self._loop.call_soon_threadsafe

    def _counting(self, schedule: Callable[..., asyncio.Handle]) -> Callable[..., asyncio.Handle]:
        def counting(callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:
            return schedule(self._step, callback, args, context=context)

        return counting

    def _step(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        if self.count == self._number:
            self._act()
        self.count += 1
        callback(*args)


async def hold(view: View[Any], until: asyncio.Event, entered: asyncio.Event | None = None) -> Any:
    """Hold it in a task of one's own until the event."""
    async with view as guard:
        if entered:
            entered.set()
        await until.wait()
    return guard


def acquires(command: Command) -> bool:
    return isinstance(command, Acquire)
