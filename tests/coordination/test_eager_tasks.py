"""Where tasks begin at once (`asyncio.eager_task_factory`, Python 3.12), everything is as it was."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence

import pytest

from grelmicro_fastapi.coordination.store import Answer, Ask
from tests.coordination.crews import Fleet, Process, Wire, empty

pytestmark = pytest.mark.anyio


class Prompt(Wire):
    """A store that answers without ever making anybody wait."""

    async def apply(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        self.batches.append(list(asks))
        return await self.store.apply(asks)


if sys.version_info >= (3, 12):

    @pytest.fixture
    async def eager() -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(asyncio.eager_task_factory)
        yield
        loop.set_task_factory(None)

    @pytest.mark.usefixtures("eager")
    @pytest.mark.parametrize("direct", [True, False])
    async def test_eager_tasks_exclude_each_other(direct: bool) -> None:
        fleet = Fleet()
        async with fleet.process() as (there, _), fleet.direct() as here:
            total = 0

            async def add(number: int) -> None:
                nonlocal total
                async with (here if direct and number % 2 else there).lock():
                    found = total
                    await asyncio.sleep(0)
                    total = found + 1

            await asyncio.gather(*(asyncio.create_task(add(number)) for number in range(20)))
            assert total == 20
            assert empty(await fleet.state("lock:x"))

    @pytest.mark.usefixtures("eager")
    async def test_eager_tasks_that_are_cancelled_leave_nothing() -> None:
        fleet = Fleet()
        async with fleet.process() as (process, _):
            for _ in range(3):
                task = asyncio.create_task(process.lock().acquire())
                task.cancel()
                await fleet.clock.settle()
                assert task.cancelled()
                assert empty(await fleet.state("lock:x"))
                async with process.catalog().read:
                    pass

    @pytest.mark.usefixtures("eager")
    async def test_a_call_that_ends_before_its_task_is_known_does_not_block_the_next() -> None:
        fleet = Fleet()
        wire = Prompt(fleet.memory._store(), fleet.clock)
        async with Process(wire, fleet.clock) as process:
            for _ in range(3):
                guard = await asyncio.wait_for(process.lock().acquire(), 10)
                await guard.release()
            assert wire.sent() == 6
