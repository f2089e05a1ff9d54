"""Every connection is slow for a moment, at random: nobody meets anybody, and everybody is served."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from grelmicro_fastapi.coordination.guards import Guard, WriteGuard
from grelmicro_fastapi.errors import BackendError, LockTimeoutError
from grelmicro_fastapi.providers.base import Provider
from tests.faultproxy import Fault, FaultProxy, fault_proxy
from tests.providers.networked import PATIENCE, SHORT, Networked, mine, settled
from tests.providers.scene import Scene

pytestmark = pytest.mark.anyio

_names = itertools.count()


async def test_however_slow_which_connection_is_nobody_meets_anybody_and_everybody_is_served(
    networked: Networked, networked_server: Any
) -> None:
    rng, port, name = random.Random(11), networked.port(networked_server), f"weather-{next(_names)}"
    inside: list[Guard] = []
    latest = 0

    def entered(guard: Guard) -> None:
        nonlocal latest
        writes = isinstance(guard, WriteGuard)
        assert not [one for one in inside if one.valid and (writes or isinstance(one, WriteGuard))]
        # Nobody dies in here, so nobody may hear that somebody did.
        assert not getattr(guard, "poisoned", False)
        if isinstance(guard, WriteGuard):
            assert guard.fencing_token > latest
            latest = guard.fencing_token
        inside.append(guard)

    async def stay(guard: Guard) -> None:
        entered(guard)
        try:
            await asyncio.sleep(rng.choice([0, 0.002]))  # work
            if rng.random() < 0.3:
                await quietly(guard.extend)
            if isinstance(guard, WriteGuard) and rng.random() < 0.3:
                inside.remove(guard)
                reading = await quietly(guard.downgrade)
                if reading:
                    entered(reading)
                    guard = reading
        finally:
            if guard in inside:
                inside.remove(guard)
            await settled(guard)

    async def work(provider: Provider) -> None:
        lock, visits = mine(name, provider), 0
        while visits < 4:
            view = rng.choice([lock.write, lock.write, lock.read])
            try:
                async with asyncio.timeout(rng.choice([0.05, 0.4, PATIENCE])):
                    guard = await view.acquire(timeout=rng.choice([0, 0.2, None]))
            except (BackendError, LockTimeoutError, TimeoutError):
                continue
            visits += 1
            await stay(guard)

    async def shake(proxy: FaultProxy) -> None:
        while True:
            number = rng.randint(max(1, proxy.connections - 12), proxy.connections)
            proxy.apart[number] = Fault(delay=rng.choice([0, 0, 0.02, 0.1, 1.5 * SHORT]))
            await asyncio.sleep(0.01)  # a moment of this weather

    async with (
        fault_proxy(port) as proxy,
        networked.connect(proxy.port) as one,
        networked.connect(proxy.port) as two,
        networked.straight(networked_server) as direct,
    ):
        shaking = asyncio.ensure_future(shake(proxy))
        try:
            async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                for provider in (one, two, direct):
                    for _ in range(4):
                        group.create_task(work(provider))
        finally:
            shaking.cancel()
            proxy.heal()
        scene = Scene(proxy, name, one, direct)
        await scene.is_left_as_new()


async def quietly(ask: Callable[[], Awaitable[Any]]) -> Any:
    """What it brings, or None if the store gave no verdict."""
    try:
        return await ask()
    except BackendError:
        return None
