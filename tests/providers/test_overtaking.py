"""One connection is slow while others run, so that requests overtake each other: what comes late changes nothing.

A provider opens a new connection when the old one does not answer in time. What it had said on the old one may arrive
long after what it says on the new one.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from grelmicro_fastapi.coordination.guards import Guard, WriteGuard
from grelmicro_fastapi.coordination.readwritelock import ReadView, ReadWriteLock, WriteView
from grelmicro_fastapi.coordination.state import State
from grelmicro_fastapi.errors import BackendError, LockNotOwnedError, LockTimeoutError
from grelmicro_fastapi.providers.base import Provider
from tests.faultproxy import Fault, FaultProxy, Held, fault_proxy
from tests.providers.networked import SHORT, Networked, mine, persistent, settled, state_of

pytestmark = pytest.mark.anyio

PATIENCE = 10
_names = itertools.count()


@dataclass
class Scene:
    """A lock, seen by a provider behind the proxy, `here`, and by one that speaks to the server itself, `there`."""

    proxy: FaultProxy
    name: str
    there: Provider
    mine: ReadWriteLock
    theirs: ReadWriteLock

    def hold(self) -> Held:
        """The next connection that says something of this lock is slow from then on."""
        return self.proxy.hold("up", self.name)

    async def state(self) -> State:
        return (await state_of(self.there, self.name)).state

    async def until(self, condition: Callable[[State], object]) -> State:
        """Look until the store's state is such."""
        async with asyncio.timeout(PATIENCE):
            while True:
                state = await self.state()
                if condition(state):
                    return state
                await asyncio.sleep(0.01)  # the store tells nobody who merely looks

    async def is_left_as_new(self) -> None:
        """Nothing is in it, nobody hears tales of a writer that died, and whoever comes gets in, on both sides."""
        async with asyncio.timeout(PATIENCE):
            await self.until(lambda state: not (state.writer or state.readers or state.seats))
            for lock in (self.theirs, self.mine):
                guard = await persistent(lock.write.acquire)
                assert not guard.poisoned
                await settled(guard)


@pytest.fixture
async def scene(networked: Networked, networked_server: Any) -> AsyncIterator[Scene]:
    port, name = networked.port(networked_server), f"overtaking-{next(_names)}"
    async with (
        fault_proxy(port) as proxy,
        networked.connect(networked_server, proxy.port) as here,
        networked.connect(networked_server, port) as there,
    ):
        # Scripts and statements are known from here on, so that only the name's own requests are held.
        await (await mine(f"warm-{name}", here).write.acquire()).release()
        yield Scene(proxy, name, there, mine(name, here), mine(name, there))


VIEWS: dict[str, Callable[[ReadWriteLock], ReadView | WriteView]] = {
    "read": lambda lock: lock.read,
    "write": lambda lock: lock.write,
}


@pytest.mark.parametrize("mode", VIEWS)
@pytest.mark.parametrize("timeout", [0, PATIENCE], ids=["one attempt", "a place in the queue"])
async def test_an_acquire_that_its_undo_has_overtaken_is_refused(scene: Scene, mode: str, timeout: float) -> None:
    late = scene.hold()
    with pytest.raises(BackendError):
        await VIEWS[mode](scene.mine).acquire(timeout=timeout)
    assert late.came.is_set()
    before = await scene.until(lambda state: state.graves)

    await late.arrive()
    after = await scene.state()
    assert (after.writer, after.readers, after.seats, after.fence) == (None, {}, [], before.fence)
    await scene.is_left_as_new()


async def test_an_acquire_that_its_undo_has_overtaken_does_not_queue_behind_the_holder(scene: Scene) -> None:
    held = await scene.theirs.write.acquire()
    late = scene.hold()
    with pytest.raises(BackendError):
        await scene.mine.write.acquire(timeout=PATIENCE)
    await scene.until(lambda state: state.graves)

    await late.arrive()
    assert not (await scene.state()).seats
    await held.release()
    await scene.is_left_as_new()


async def test_a_cancelled_acquire_that_its_undo_has_overtaken_is_refused(scene: Scene) -> None:
    late = scene.hold()
    acquiring = asyncio.ensure_future(scene.mine.write.acquire())
    await late.came.wait()
    acquiring.cancel()
    await scene.until(lambda state: state.graves)
    guard = await scene.theirs.write.acquire()

    await late.arrive()
    await guard.extend()
    await guard.release()
    await scene.is_left_as_new()
    assert acquiring.cancelled()


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))], ids=str)
async def test_attempts_and_their_undoes_may_arrive_in_any_order(scene: Scene, order: tuple[int, ...]) -> None:
    late = [scene.hold(), scene.hold(), scene.hold()]
    # Its Acquire is held, then its Undo, then that again or the next Acquire.
    with pytest.raises(BackendError):
        await scene.mine.write.acquire(timeout=PATIENCE)
    guard: WriteGuard = await persistent(scene.mine.write.acquire)
    assert all(one.came.is_set() for one in late)

    for number in order:
        await late[number].arrive()
        await guard.extend()
        assert guard.valid
    await guard.release()
    await scene.is_left_as_new()


@pytest.mark.parametrize("poison", [False, True], ids=["clean", "poisoned"])
async def test_a_release_that_comes_late_ends_nobody_elses_hold(scene: Scene, poison: bool) -> None:
    guard, late = await scene.mine.write.acquire(), scene.hold()
    with pytest.raises(BackendError):
        await guard.release(poison=poison)
    # It was sent again meanwhile.
    other = await scene.theirs.write.acquire()
    assert other.poisoned == poison

    await late.arrive()
    await other.extend()
    await other.release()
    await settled(guard)
    await scene.is_left_as_new()


async def test_a_readers_release_that_comes_late_ends_nobody_elses_hold(scene: Scene) -> None:
    guard, late = await scene.mine.read.acquire(), scene.hold()
    with pytest.raises(BackendError):
        await guard.release()
    other = await scene.theirs.write.acquire()

    await late.arrive()
    await other.extend()
    await other.release()
    await settled(guard)
    await scene.is_left_as_new()


@pytest.mark.parametrize("mode", VIEWS)
async def test_a_renewal_that_comes_after_the_release_revives_nothing(scene: Scene, mode: str) -> None:
    guard, late = await VIEWS[mode](scene.mine).acquire(), scene.hold()
    renewing = asyncio.ensure_future(guard.extend())
    await late.came.wait()
    # Renewals have a connection of their own.
    await guard.release()
    other = await scene.theirs.write.acquire()

    await late.arrive()
    await other.extend()
    assert not (await scene.state()).readers
    with pytest.raises((BackendError, LockNotOwnedError)):
        await renewing
    await other.release()
    await scene.is_left_as_new()


async def test_a_downgrade_that_comes_late_makes_no_reader(scene: Scene) -> None:
    guard, late = await scene.mine.write.acquire(), scene.hold()
    with pytest.raises(BackendError):
        await guard.downgrade()
    # Nobody knew what had become of it, so it was undone.
    other = await scene.theirs.write.acquire()
    assert not other.poisoned

    await late.arrive()
    await other.extend()
    assert not (await scene.state()).readers
    await other.release()
    await scene.is_left_as_new()


async def test_a_place_given_up_late_costs_those_who_queued_again_no_more_than_a_moment(scene: Scene) -> None:
    held = await scene.theirs.write.acquire()
    impatient = asyncio.ensure_future(scene.mine.write.acquire())
    await scene.until(lambda state: state.seats)
    late = scene.hold()
    impatient.cancel()
    await late.came.wait()
    # The same process has the same place, so that the late word is about this one now.
    patient = asyncio.ensure_future(persistent(scene.mine.write.acquire))
    await asyncio.sleep(2 * SHORT)  # the network's own time: until the slow connection is given up
    await scene.until(lambda state: state.seats)

    await late.arrive()
    await held.release()
    async with asyncio.timeout(PATIENCE):
        await settled(await patient)
    await scene.is_left_as_new()


async def test_a_wake_that_comes_late_is_not_waited_for_and_wakes_nobody(scene: Scene) -> None:
    held = await scene.theirs.write.acquire()
    waiting = asyncio.ensure_future(scene.mine.write.acquire())
    await scene.until(lambda state: state.seats)
    late = scene.proxy.hold("down", scene.name)
    await held.release()
    await late.came.wait()
    async with asyncio.timeout(PATIENCE):
        await (await waiting).release()

    await late.arrive()
    await scene.is_left_as_new()


async def test_however_slow_which_connection_is_nobody_meets_anybody_and_everybody_is_served(
    networked: Networked, networked_server: Any
) -> None:
    rng, port, name = random.Random(11), networked.port(networked_server), f"overtaking-{next(_names)}"
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
        networked.connect(networked_server, proxy.port) as one,
        networked.connect(networked_server, proxy.port) as two,
        networked.connect(networked_server, port) as direct,
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
        scene = Scene(proxy, name, direct, mine(name, one), mine(name, direct))
        await scene.is_left_as_new()


async def quietly(ask: Callable[[], Awaitable[Any]]) -> Any:
    """What it brings, or None if the store gave no verdict."""
    try:
        return await ask()
    except BackendError:
        return None
