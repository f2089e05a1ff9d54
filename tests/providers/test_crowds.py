"""Crowds over a network that fails. Their batches follow each other, so what breaks, breaks for several."""

import asyncio
import itertools
from collections import Counter
from typing import Any

import pytest

from grelmicro_fastapi.providers.base import Provider
from tests.faultproxy import Fault, fault_proxy
from tests.providers.networked import Networked, mine, persistent, settled, state_of

pytestmark = pytest.mark.anyio

NAMES = 60
_numbers = itertools.count()


async def empty(provider: Provider, name: str) -> bool:
    """Nothing is left but the fence."""
    kept, _ = await state_of(provider, name)
    return (kept.writer, kept.readers, kept.seats, kept.poisoned) == (None, {}, [], False)


@pytest.mark.parametrize("fault", ["cut", "half an answer", "a reset"])
async def test_a_crowd_is_served_although_the_line_breaks_again_and_again(
    networked: Networked, networked_server: Any, fault: str
) -> None:
    port, number = networked.port(networked_server), next(_numbers)
    names = [f"crowds-{number}-{one}" for one in range(NAMES)]
    async with (
        fault_proxy(port) as proxy,
        networked.connect(proxy.port) as here,
        networked.straight(networked_server) as there,
    ):
        inside, served, fences = Counter[str](), Counter[str](), dict.fromkeys(names, 0)

        async def work(provider: Provider, name: str) -> None:
            for _ in range(3):
                guard = await persistent(mine(name, provider).write.acquire)
                inside[name] += 1
                assert inside[name] == 1
                assert guard.fencing_token > fences[name]
                fences[name] = guard.fencing_token
                await asyncio.sleep(0)
                inside[name] -= 1
                served[name] += 1
                await settled(guard)

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(work(here, name))
                group.create_task(work(there, name))
            for _ in range(5):
                await asyncio.sleep(0.02)  # some way into it
                if fault == "cut":
                    proxy.cut()
                else:
                    proxy.down = Fault(cut_after=700) if fault == "half an answer" else Fault(reset=True)
                    await asyncio.sleep(0.02)  # it meets what is on its way
                    proxy.heal()
        assert set(served.values()) == {6}
        await here.backend.crew().courier.rest(10)
        assert [name for name in names if not await empty(there, name)] == []


async def test_a_crowd_that_is_cancelled_while_its_batches_are_under_way_leaves_nothing(
    networked: Networked, networked_server: Any
) -> None:
    port, number = networked.port(networked_server), next(_numbers)
    names = [f"crowds-{number}-{one}" for one in range(NAMES)]
    async with (
        fault_proxy(port) as proxy,
        networked.connect(proxy.port) as here,
        networked.straight(networked_server) as there,
    ):
        proxy.up = Fault(delay=0.05)
        calls = [asyncio.create_task(mine(name, here).write.acquire()) for name in names]
        await asyncio.wait(calls, timeout=0.06)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        proxy.heal()
        for call in calls:
            # Who was served before has to give it back.
            if not call.cancelled() and not call.exception():
                await settled(call.result())
        await here.backend.crew().courier.rest(10)
        assert [name for name in names if not await empty(there, name)] == []
