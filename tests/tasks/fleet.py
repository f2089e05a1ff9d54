"""Several processes of a fleet, each with a crew of its own, over one memory and one clock."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from grelmicro_fastapi.coordination.crew import Crew
from grelmicro_fastapi.coordination.state import Command, Mode
from grelmicro_fastapi.coordination.store import Answer, Snapshot, Store
from grelmicro_fastapi.coordination.uncontended import Found
from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers.memory import MemoryProvider, MemoryStore
from grelmicro_fastapi.testing.clock import ManualClock


class Wire(MemoryStore):
    """The way of one process to the memory. Once cut, nothing passes any more: so it is after kill -9, too."""

    cut = False

    def at_once(self, key: str, command: Command, claim: int) -> Answer:
        return BackendError("cut off") if self.cut else super().at_once(key, command, claim)

    def enter(self, key: str, token: str, mode: Mode, ttl: int, note: str) -> Found | None:
        return None if self.cut else super().enter(key, token, mode, ttl, note)

    def leave(self, key: str, token: str) -> bool:
        return not self.cut and super().leave(key, token)

    async def peek(self, key: str) -> Snapshot:
        if self.cut:
            raise BackendError("cut off")
        return await super().peek(key)


class Process(MemoryProvider):
    """One process of the fleet."""

    wire: Wire

    def __init__(self, memory: MemoryProvider) -> None:
        super().__init__(clock=memory.clock)
        self._states = memory._states

    def _store(self) -> Store:
        self.wire = Wire(self._states)
        return self.wire

    def crew(self) -> Crew:
        return self.backend.crew()


@asynccontextmanager
async def fleet(count: int) -> AsyncIterator[tuple[ManualClock, list[Process]]]:
    """So many processes. Time stands still until the test moves it, and flies once the test is over."""
    clock = ManualClock()
    memory = MemoryProvider(clock=clock)
    flights = [asyncio.create_task(_fly(clock, after=10))]
    try:
        async with AsyncExitStack() as stack:
            processes = [await stack.enter_async_context(Process(memory)) for _ in range(count)]
            try:
                yield clock, processes
            finally:
                # What is still to be undone is tried again after pauses.
                flights.append(asyncio.create_task(_fly(clock)))
    finally:
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)


async def _fly(clock: ManualClock, *, after: float = 0) -> None:
    """A test that failed in the middle must end, although what it leaves behind waits for time to go on."""
    await asyncio.sleep(after)
    while True:
        await clock.advance(0.5)
