"""Locks over a network that fails: whatever is lost, cut or late, nothing is left behind and nobody is left waiting."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from grelmicro_fastapi.coordination.guards import Guard, WriteGuard
from grelmicro_fastapi.coordination.readwritelock import ReadWriteLock
from grelmicro_fastapi.errors import BackendError, WouldBlockError
from grelmicro_fastapi.providers.base import Provider
from grelmicro_fastapi.providers.redis import RedisProvider
from grelmicro_fastapi.providers.redis_wire import snapshot
from grelmicro_fastapi.providers.valkey import ValkeyProvider
from tests.faultproxy import Fault, FaultProxy, fault_proxy
from tests.providers.networked import PATIENCE, SHORT, Networked, mine, persistent, prepared, settled, state_of
from tests.servers.redis import Server

pytestmark = pytest.mark.anyio

_names = itertools.count()


FAULTS: dict[str, Callable[[FaultProxy], object]] = {
    "the request is reset": lambda proxy: setattr(proxy, "up", Fault(reset=True)),
    "the request vanishes": lambda proxy: setattr(proxy, "up", Fault(drop=True)),
    "the request is cut": lambda proxy: setattr(proxy, "up", Fault(cut_after=20)),
    "the request is late": lambda proxy: setattr(proxy, "up", Fault(delay=0.1)),
    "the answer is reset": lambda proxy: setattr(proxy, "down", Fault(reset=True)),
    "the answer vanishes": lambda proxy: setattr(proxy, "down", Fault(drop=True)),
    "the answer is cut": lambda proxy: setattr(proxy, "down", Fault(cut_after=3)),
    "the answer is late": lambda proxy: setattr(proxy, "down", Fault(delay=0.1)),
}

Step = Callable[[ReadWriteLock, WriteGuard], Awaitable[Any]]
STEPS: dict[str, Step] = {
    "acquire": lambda lock, guard: lock.write.acquire(timeout=2),
    "extend": lambda lock, guard: guard.extend(),
    "downgrade": lambda lock, guard: guard.downgrade(),
    "release": lambda lock, guard: guard.release(),
}


@pytest.mark.parametrize("cancelled", [False, True], ids=["waited-for", "cancelled"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("fault", FAULTS)
async def test_whatever_is_lost_on_the_way_nothing_is_left_behind(
    networked: Networked, networked_server: Any, fault: str, step: str, cancelled: bool
) -> None:
    port, name = networked.port(networked_server), f"faults-{next(_names)}"
    async with (
        fault_proxy(port) as proxy,
        networked.connect(proxy.port) as here,
        networked.straight(networked_server) as there,
    ):
        lock, other = mine(name, here), mine(name, there)
        held: list[Guard] = []
        first = await prepared(lock.write.acquire, here)
        if step == "acquire":
            await settled(first)
        else:
            held.append(first)

        FAULTS[fault](proxy)
        trouble = asyncio.ensure_future(STEPS[step](lock, first))
        await asyncio.wait([trouble], timeout=0.05)
        if cancelled:
            trouble.cancel()
        await asyncio.wait([trouble], timeout=SHORT)
        proxy.heal()
        await asyncio.wait([trouble])
        if not trouble.cancelled() and not (error := trouble.exception()):
            held += [trouble.result()] if isinstance(trouble.result(), Guard) else []
        elif not trouble.cancelled():
            assert isinstance(error, BackendError), error

        for guard in held:
            # Who believes to hold it is alone with it.
            if guard.valid:
                with pytest.raises(WouldBlockError):
                    await other.write.acquire_nowait()
            await settled(guard)
        async with asyncio.timeout(15):
            # Long before a lease is over somebody else gets in, and hears no tales of a writer that died.
            guard = await other.write.acquire()
            assert not guard.poisoned
            await guard.release()
            # And nothing here is wedged, once what was under way has failed.
            await settled(await persistent(lock.write.acquire))
        # What had to be asked for again has arrived, and what is dead would still be seen.
        await here.backend.crew().courier.rest(PATIENCE)
        kept, _ = await state_of(there, name)
        assert (kept.writer, kept.readers, kept.seats, kept.poisoned) == (None, {}, [], False)


async def test_everybody_who_waits_is_served_although_the_line_is_cut_again_and_again(
    networked: Networked, networked_server: Any
) -> None:
    port, name = networked.port(networked_server), f"faults-{next(_names)}"
    async with (
        fault_proxy(port) as proxy,
        networked.connect(proxy.port) as here,
        networked.straight(networked_server) as there,
    ):
        inside = served = 0

        async def work(provider: Provider) -> None:
            nonlocal inside, served
            guard = await persistent(mine(name, provider).write.acquire)
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            inside -= 1
            served += 1
            await settled(guard)

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(work(here))
                group.create_task(work(there))
            for _ in range(5):
                await asyncio.sleep(0.02)  # some way into it
                proxy.cut()
        assert served == 40


async def served(ask: Callable[[], Awaitable[Any]]) -> Any:
    """What it brings. On a machine that is slow to work through a crowd, who was told so asks again."""
    while True:
        try:
            return await ask()
        except BackendError as error:
            if "did not answer within" not in str(error):
                raise


async def test_ten_thousand_waiters_of_whom_many_give_up_leave_no_channel_and_nothing_but_fences(
    valkey_server: Server,
) -> None:
    rng = random.Random(7)
    with valkey_server.client() as meddler:
        meddler.flushall()
        channels = len(meddler.pubsub_channels())
        async with RedisProvider(valkey_server.url) as one, ValkeyProvider(valkey_server.url) as two:

            async def visit(provider: Provider, name: str) -> None:
                guard = await served(mine(name, provider).write.acquire)
                await asyncio.sleep(0)
                await served(guard.release)

            tasks = [
                asyncio.create_task(visit(rng.choice([one, two]), f"crowd-{number % 500}")) for number in range(10_000)
            ]
            while pending := [task for task in tasks if not task.done()]:
                for task in rng.sample(pending, min(len(pending), 150)):
                    if rng.random() < 0.5:
                        task.cancel()
                await asyncio.wait(pending, timeout=0.05)
            assert not [task for task in tasks if not task.cancelled() and task.exception()]
            left = sum(task.cancelled() for task in tasks)
            assert 500 < left < 9_500
            async with asyncio.timeout(60):
                for number in range(500):
                    # Undos are on their way still; who comes last waits for them like everybody else.
                    guard = await served(mine(f"crowd-{number}", one).write.acquire)
                    await served(guard.release)
        assert len(meddler.pubsub_channels()) == channels
        for key in meddler.scan_iter(match="rwlock:crowd-*"):
            kept = meddler.hgetall(key)
            # Graves outlive us by half a minute.
            assert {name.partition(b":")[0] for name in kept} <= {b"v", b"state", b"g"}, kept
            state = snapshot([0, b"0", [part for field in kept.items() for part in field]]).state
            assert (state.writer, state.readers, state.seats) == (None, {}, []), state
