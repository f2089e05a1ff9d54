"""One connection is slow while others run, so that requests overtake each other: what comes late changes nothing.

A provider opens a new connection when the old one does not answer in time. What it had said on the old one may arrive
long after what it says on the new one.
"""

import asyncio
import itertools
from collections.abc import Callable

import pytest

from grelmicro_fastapi.coordination.guards import WriteGuard
from grelmicro_fastapi.coordination.readwritelock import ReadView, ReadWriteLock, WriteView
from grelmicro_fastapi.errors import BackendError, LockNotOwnedError
from tests.providers.networked import PATIENCE, SHORT, persistent, settled
from tests.providers.scene import Scene

pytestmark = pytest.mark.anyio

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
        await persistent(guard.extend)
        assert guard.valid
    await settled(guard)
    await scene.is_left_as_new()


@pytest.mark.parametrize("poison", [False, True], ids=["clean", "poisoned"])
async def test_a_release_that_comes_late_ends_nobody_elses_hold(scene: Scene, poison: bool) -> None:
    guard = await scene.prepared(scene.mine.write.acquire)
    late = scene.hold()
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
    guard = await scene.prepared(scene.mine.read.acquire)
    late = scene.hold()
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
    guard = await scene.prepared(VIEWS[mode](scene.mine).acquire)
    late = scene.hold()
    renewing = asyncio.ensure_future(guard.extend())
    await late.came.wait()
    # Renewals have a connection of their own.
    await settled(guard)
    other = await scene.theirs.write.acquire()

    await late.arrive()
    await other.extend()
    assert not (await scene.state()).readers
    with pytest.raises((BackendError, LockNotOwnedError)):
        await renewing
    await other.release()
    await scene.is_left_as_new()


async def test_a_downgrade_that_comes_late_makes_no_reader(scene: Scene) -> None:
    guard = await scene.prepared(scene.mine.write.acquire)
    late = scene.hold()
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
        await settled(await waiting)

    await late.arrive()
    await scene.is_left_as_new()
