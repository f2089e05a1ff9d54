"""Locks as decorators: each call of the function runs under the lock."""

import asyncio
import inspect

import pytest

from grelmicro_fastapi.coordination import Lock, ReadWriteLock, TaskLock
from grelmicro_fastapi.errors import LockReentrantError, WouldBlockError
from grelmicro_fastapi.providers.memory import MemoryProvider

pytestmark = pytest.mark.anyio


async def test_calls_of_a_decorated_function_take_turns() -> None:
    async with MemoryProvider() as memory:
        inside, most = 0, 0

        @Lock("x", backend=memory)
        async def work(number: int, *, by: int = 2) -> int:
            """Works."""
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1
            return number * by

        assert await asyncio.gather(*[work(number, by=3) for number in range(10)]) == [3 * n for n in range(10)]
        assert most == 1
        assert (work.__name__, work.__doc__) == ("work", "Works.")
        assert list(inspect.signature(work).parameters) == ["number", "by"]
        assert inspect.iscoroutinefunction(work)


async def test_readers_come_in_together_and_a_body_that_raised_poisons_nothing() -> None:
    async with MemoryProvider() as memory:
        catalog = ReadWriteLock("catalog", backend=memory)
        met = asyncio.Barrier(3)

        @catalog.read
        async def read() -> None:
            await met.wait()

        @catalog.write
        async def write() -> None:
            raise RuntimeError("broken")

        async with asyncio.timeout(10):
            await asyncio.gather(read(), read(), read())
        with pytest.raises(RuntimeError, match="broken"):
            await write()
        state = await catalog.state()
        assert (state.writing, state.readers, state.poisoned) == (False, 0, False)


async def test_a_task_lock_refuses_a_second_call_and_a_lock_one_from_inside() -> None:
    async with MemoryProvider() as memory:

        @TaskLock("nightly", backend=memory)
        async def nightly() -> None:
            await asyncio.create_task(nightly())

        @Lock("x", backend=memory)
        async def recursive() -> None:
            await recursive()

        with pytest.raises(WouldBlockError):
            await nightly()
        with pytest.raises(LockReentrantError):
            await recursive()
