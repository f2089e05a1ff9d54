"""Many tasks of several processes, who give up at any moment, over one store: nothing is lost and nothing stays."""

import asyncio
import random
from contextlib import AsyncExitStack
from typing import Any

import pytest

from grelmicro_fastapi.errors import BackendError, LockTimeoutError
from tests.coordination.crews import Fleet, Process, empty, quiet
from tests.stores import StoreUnderTest, on_every_store

pytestmark = pytest.mark.anyio


class Resource:
    """What the lock protects. It is read, and written a while later, so an overlap shows."""

    def __init__(self) -> None:
        self.value = 0
        self.writes = 0
        self.fences: list[int] = []
        self.readers = 0
        self.writing = False

    async def write(self, fence: int, steps: int) -> None:
        assert not self.writing
        assert not self.readers
        self.fences.append(fence)
        self.writing, found = True, self.value
        try:
            for _ in range(steps):
                await asyncio.sleep(0)
            self.value = found + 1
            self.writes += 1
        finally:
            self.writing = False

    async def read(self, steps: int) -> None:
        assert not self.writing
        self.readers += 1
        try:
            for _ in range(steps):
                await asyncio.sleep(0)
            assert not self.writing
        finally:
            self.readers -= 1


async def visit(process: Process, resource: Resource, dice: random.Random, name: str) -> None:
    catalog = process.catalog(name, keep_alive=dice.random() < 0.5)
    timeout = dice.choice([None, None, 0, 0.5, 3])
    try:
        if dice.random() < 0.4:
            reading = await catalog.read.acquire(timeout=timeout)
            try:
                await resource.read(dice.randrange(6))
            finally:
                await reading.release()
        else:
            writing = await catalog.write.acquire(timeout=timeout)
            try:
                await resource.write(writing.fencing_token, dice.randrange(6))
                if dice.random() < 0.2:
                    await (await writing.downgrade()).release()
            finally:
                await writing.release()
    except (LockTimeoutError, BackendError):
        pass


@pytest.mark.usefixtures("wires")
@pytest.mark.parametrize("seed", range(8))
async def test_whatever_callers_do_the_resource_is_whole_and_nothing_stays(seed: int) -> None:
    dice = random.Random(seed)
    fleet = Fleet()
    resource = Resource()
    async with AsyncExitStack() as stack:
        processes = []
        for _ in range(3):
            process, wire = await stack.enter_async_context(fleet.process())
            wire.going = dice.choice([0, 0.001, 0.02])
            wire.coming = dice.choice([0, 0.001, 0.02])
            processes.append(process)
        if seed % 2:
            processes.append(await stack.enter_async_context(fleet.direct()))
        tasks: list[asyncio.Task[Any]] = []
        for _ in range(300):
            tasks.append(asyncio.create_task(visit(dice.choice(processes), resource, dice, "x")))
            if dice.random() < 0.3:
                dice.choice(tasks).cancel()
            if dice.random() < 0.5:
                await fleet.clock.advance(dice.choice([0, 0.001, 0.01, 0.05]))
        while not all(task.done() for task in tasks):
            await fleet.clock.advance(0.05)
        assert not [task for task in tasks if not task.cancelled() and task.exception()]
        assert resource.value == resource.writes > 20
        assert resource.fences == sorted(set(resource.fences))
        await fleet.clock.advance(1)
        assert empty(await fleet.state())


@on_every_store()
async def test_on_every_store_updates_of_several_processes_are_never_lost(site: StoreUnderTest) -> None:
    dice = random.Random(1)
    resource = Resource()
    async with AsyncExitStack() as stack:
        processes = [await stack.enter_async_context(Process(await site.store(), site.clock)) for _ in range(3)]
        tasks: list[asyncio.Task[Any]] = []
        for number in range(60):
            tasks.append(asyncio.create_task(visit(processes[number % 3], resource, dice, "x")))
            if dice.random() < 0.2:
                await asyncio.sleep(0)
                dice.choice(tasks).cancel()
        while not all(task.done() for task in tasks):
            # Who lost a wake finds out by asking; time passes so slowly that no lease ends.
            await asyncio.wait(tasks, timeout=0.02)
            await site.clock.advance(0.02)
        assert not [task for task in tasks if not task.cancelled() and task.exception()]
        assert resource.value == resource.writes > 5
        assert resource.fences == sorted(set(resource.fences))
        for process in processes:
            await quiet(process, "rwlock:x")
        state = await processes[0].state()
        assert empty(state)
        assert not state.poisoned
