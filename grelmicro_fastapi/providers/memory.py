"""States in this process's memory: for tests, for development, and for services of one process."""

import asyncio
import contextlib
import copy
import secrets
import threading
from collections.abc import AsyncIterator, Hashable, Sequence
from typing import Self

from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.coordination.rules import step
from grelmicro_fastapi.coordination.state import CLAIM, VERSION, Command, Mode, Purge, Reply, State, Vacate, Verdict
from grelmicro_fastapi.coordination.store import Answer, Ask, Scope, Snapshot, Wake, Woken
from grelmicro_fastapi.coordination.uncontended import Found, enters, leaves
from grelmicro_fastapi.providers.base import Provider, newer


class _States:
    """What every loop and thread that uses one provider shares."""

    def __init__(self, clock: Clock) -> None:
        self.time = clock.now
        self.lock = threading.Lock()
        self.kept: dict[str, State] = {}
        self.listeners: dict[str, tuple[asyncio.AbstractEventLoop, Woken]] = {}
        self.floor = 0
        self.ahead = clock.wall() - clock.now()

    def now(self) -> int:
        return int((self.time() + self.ahead) * 1000)

    def tell(self, key: str, wakes: tuple[tuple[str, int], ...]) -> None:
        here = asyncio.get_running_loop()
        for seat, after in wakes:
            listener = self.listeners.get(seat.rpartition("/")[0])
            if not listener:
                continue
            loop, woken = listener
            if loop is here:
                loop.call_soon(woken, Wake(key, seat, after))
                continue
            # A loop that is closed has nobody left to wake.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(woken, Wake(key, seat, after))


class MemoryStore:
    """One loop's view of the states."""

    scope = Scope.PROCESS
    place = 3.0

    def __init__(self, states: _States) -> None:
        self.channel = secrets.token_hex(8)
        self._states = states

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to give back."""

    def lane(self, key: str) -> Hashable:
        """Anything may travel together."""
        return None

    def at_once(self, key: str, command: Command, claim: int) -> Answer:
        """Let the law advance one key."""
        states = self._states
        lock = states.lock
        # Not `with`, which costs more than all the rest of a lock that nobody else wants.
        lock.acquire()
        try:
            state = states.kept.get(key)
            if state is None:
                reply = self._begin(key, command, claim)
            elif state.version > VERSION:
                return newer(key, state.version)
            else:
                reply = step(state, command, int((states.time() + states.ahead) * 1000), claim)
        finally:
            lock.release()
        if reply.wakes:
            states.tell(key, reply.wakes)
        return reply

    def enter(self, key: str, token: str, mode: Mode, ttl: int, note: str) -> Found | None:
        """Let the law's short way grant an Acquire."""
        states = self._states
        lock = states.lock
        lock.acquire()
        try:
            state = states.kept.get(key)
            if state is None or state.version > VERSION:
                return None
            return enters(state, int((states.time() + states.ahead) * 1000), token, mode, ttl, note)
        finally:
            lock.release()

    def leave(self, key: str, token: str) -> bool:
        """Let the law's short way grant a Release."""
        states = self._states
        lock = states.lock
        lock.acquire()
        try:
            state = states.kept.get(key)
            if state is None or state.version > VERSION:
                return False
            return leaves(state, int((states.time() + states.ahead) * 1000), token)
        finally:
            lock.release()

    async def apply(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        """Let the law advance each key. Never suspends."""
        return [self.at_once(*ask) for ask in asks]

    async def peek(self, key: str) -> Snapshot:
        """Read one state."""
        states = self._states
        with states.lock:
            state = states.kept.get(key)
            return Snapshot(copy.deepcopy(state) if state else State(states.floor), states.now())

    async def keys(self, prefix: str) -> AsyncIterator[str]:
        """Every key kept at this moment that starts with `prefix`."""
        for key in self._kept(prefix):
            yield key

    async def listen(self, woken: Woken) -> None:
        """Report wakes for this store's seats until cancelled."""
        listeners = self._states.listeners
        listeners[self.channel] = (asyncio.get_running_loop(), woken)
        try:
            # Nobody listened until now: what was said meanwhile is lost.
            woken(None)
            await asyncio.get_running_loop().create_future()
        finally:
            del listeners[self.channel]

    async def vacate(self) -> int:
        """Bury what is dead."""
        answers = await self.apply([Ask(key, Vacate(), CLAIM) for key in self._kept()])
        return sum(not isinstance(answer, Exception) and answer.verdict is Verdict.GRANTED for answer in answers)

    async def purge(self, idle: float) -> int:
        """Drop names idle for so many seconds."""
        states, ask, told = self._states, Purge(int(idle * 1000)), list[tuple[str, Reply]]()
        gone = 0
        with states.lock:
            now = states.now()
            for key, state in list(states.kept.items()):
                reply = step(state, ask, now)
                if reply.wakes:
                    told.append((key, reply))
                if reply.verdict is Verdict.GRANTED:
                    gone += 1
                    # A dropped name that comes back starts above every fence it had.
                    states.floor = max(states.floor, state.fence)
                    del states.kept[key]
        for key, reply in told:
            states.tell(key, reply.wakes)
        return gone

    def _begin(self, key: str, command: Command, claim: int) -> Reply:
        """The first command for a name. What leaves no trace is not kept."""
        states = self._states
        state = State(states.floor)
        reply = step(state, command, states.now(), claim)
        if state != State(states.floor):
            states.kept[key] = state
        return reply

    def _kept(self, prefix: str = "") -> list[str]:
        with self._states.lock:
            return [key for key in self._states.kept if key.startswith(prefix)]


class MemoryProvider(Provider):
    """Keeps states in memory, shared by all loops and threads of this process that use this object.

    Nothing outlives the process, and no other process sees it: its scope is `Scope.PROCESS`.
    """

    name = "memory"
    scope = Scope.PROCESS

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self._states = _States(self.clock)

    @classmethod
    def from_url(cls, url: str, *, clock: Clock | None = None) -> Self:
        """Make one: `memory://` names no place."""
        return cls(clock=clock)

    def _store(self) -> MemoryStore:
        return MemoryStore(self._states)
