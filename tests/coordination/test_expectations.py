"""Writers that expect a generation."""

import asyncio

import pytest

from grelmicro_fastapi.coordination.readwritelock import ReadWriteLock
from grelmicro_fastapi.errors import StaleGenerationError
from grelmicro_fastapi.providers.memory import MemoryProvider
from grelmicro_fastapi.testing.clock import ManualClock

pytestmark = pytest.mark.anyio


async def test_writers_that_are_refused_for_their_generation_keep_nobody_waiting() -> None:
    memory = MemoryProvider(clock=ManualClock())
    async with memory:
        catalog = ReadWriteLock("catalog", backend=memory)

        generations: set[int | None] = set()

        async def write() -> bool:
            try:
                guard = await catalog.write.acquire(expect=0)
            except StaleGenerationError as stale:
                generations.add(stale.current)
                return False
            await asyncio.sleep(0)
            await guard.release()
            return True

        # Time stands still: whoever had to wait for it would wait for ever.
        async with asyncio.timeout(5):
            won = await asyncio.gather(*[asyncio.create_task(write()) for _ in range(50)])
        assert won.count(True) == 1
        assert generations == {1}


async def test_however_many_are_refused_in_one_step_the_lock_lives_on() -> None:
    async with MemoryProvider() as memory:
        catalog = ReadWriteLock("catalog", backend=memory)
        held = await catalog.write.acquire()
        late = [asyncio.create_task(catalog.write.acquire(expect=1)) for _ in range(1_000)]
        first = asyncio.create_task(catalog.write.acquire())
        await asyncio.sleep(0)
        await held.release(poison=True)
        async with asyncio.timeout(20):
            refused = await asyncio.gather(*late, return_exceptions=True)
            assert all(isinstance(error, StaleGenerationError) for error in refused)
            await (await first).release()
        await (await catalog.write.acquire(timeout=5)).release()


async def test_nobody_knows_the_generation_while_poisoned() -> None:
    memory = MemoryProvider(clock=ManualClock())
    async with memory:
        catalog = ReadWriteLock("catalog", backend=memory)
        await (await catalog.write.acquire()).release(poison=True)
        for expect in (0, 1):
            with pytest.raises(StaleGenerationError) as refused:
                await catalog.write.acquire(expect=expect)
            assert refused.value.current is None
        assert (await catalog.state()).generation == 1
