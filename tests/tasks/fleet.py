"""Several processes of a fleet, each with a crew of its own, over one memory and one clock."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from grelmicro_fastapi.coordination.crew import Crew
from grelmicro_fastapi.coordination.store import Answer, Ask, Snapshot, Store
from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers.memory import MemoryProvider, MemoryStore
from grelmicro_fastapi.testing.clock import ManualClock


class Wire(MemoryStore):
    """The way of one process to the memory. Once cut, nothing passes any more: so it is after kill -9, too."""

    cut = False

    def at_once(self, ask: Ask) -> Answer:
        return BackendError("cut off") if self.cut else super().at_once(ask)

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
    clock = ManualClock()
    memory = MemoryProvider(clock=clock)
    async with AsyncExitStack() as stack:
        yield clock, [await stack.enter_async_context(Process(memory)) for _ in range(count)]
