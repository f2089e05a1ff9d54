"""Once in the fleet, and skipped by everybody else."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from grelmicro_fastapi.coordination import TaskLock
from grelmicro_fastapi.errors import BackendError, LockNotOwnedError, SettingsValidationError, WouldBlockError
from grelmicro_fastapi.providers.memory import MemoryProvider
from grelmicro_fastapi.testing.clock import ManualClock
from tests.tasks.fleet import fleet

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def provider(clock: ManualClock) -> AsyncIterator[MemoryProvider]:
    async with MemoryProvider(clock=clock) as provider:
        yield provider


async def ran(lock: TaskLock) -> bool:
    try:
        async with lock:
            return True
    except WouldBlockError:
        return False


async def test_it_never_waits(provider: MemoryProvider) -> None:
    lock = TaskLock("cleanup", backend=provider)
    async with lock:
        with pytest.raises(WouldBlockError, match="runs elsewhere, or ran a moment ago") as refused:
            await asyncio.create_task(TaskLock("cleanup", backend=provider, worker="other").acquire())
    assert type(refused.value) is WouldBlockError


async def test_after_a_short_run_nobody_enters_until_the_minimal_hold_is_over(
    provider: MemoryProvider, clock: ManualClock
) -> None:
    lock = TaskLock("cleanup", backend=provider, min_hold_duration=30)
    assert await ran(lock)
    await clock.advance(29.9)
    assert not await ran(lock)
    assert not await ran(TaskLock("cleanup", backend=provider, min_hold_duration=0))
    await clock.advance(0.2)
    assert await ran(lock)


async def test_the_minimal_hold_counts_from_the_grant_and_not_from_the_release(
    provider: MemoryProvider, clock: ManualClock
) -> None:
    lock = TaskLock("cleanup", backend=provider, min_hold_duration=30)
    async with lock:
        await clock.advance(29)
    await clock.advance(1.1)
    assert await ran(lock)


async def test_after_a_run_that_raised_the_minimal_hold_is_kept_too(
    provider: MemoryProvider, clock: ManualClock
) -> None:
    lock = TaskLock("cleanup", backend=provider, min_hold_duration=30)
    with pytest.raises(ValueError, match="broken"):
        async with lock:
            raise ValueError("broken")
    await clock.advance(29)
    assert not await ran(lock)
    await clock.advance(1.1)
    assert await ran(lock)


async def test_a_late_process_does_not_do_the_work_again(provider: MemoryProvider, clock: ManualClock) -> None:
    one, two = (TaskLock("tick", backend=provider, min_hold_duration=1) for _ in range(2))
    assert await ran(one)
    await clock.advance(0.05)
    assert not await ran(two)


async def test_without_a_minimal_hold_it_is_free_at_once(provider: MemoryProvider) -> None:
    lock = TaskLock("cleanup", backend=provider, min_hold_duration=0)
    assert await ran(lock)
    assert await ran(lock)


async def test_every_handle_has_a_token_of_its_own_and_releases_only_itself(
    provider: MemoryProvider, clock: ManualClock
) -> None:
    lock = TaskLock("cleanup", backend=provider, min_hold_duration=0, lease_duration=10)
    first = await lock.acquire()
    await clock.advance(11)
    second = await lock.acquire()
    assert second.fencing_token > first.lease.fence
    with pytest.raises(LockNotOwnedError):
        await first.release()
    assert await lock.locked()
    assert second.valid
    await second.release()
    assert not await lock.locked()


async def test_refresh_lets_the_lease_start_anew(provider: MemoryProvider, clock: ManualClock) -> None:
    lock = TaskLock("cleanup", backend=provider, lease_duration=10)
    async with lock as handle:
        for _ in range(5):
            await clock.advance(8)
            await lock.refresh()
        assert handle.valid


async def test_refresh_of_what_was_lost_says_so(provider: MemoryProvider, clock: ManualClock) -> None:
    lock = TaskLock("cleanup", backend=provider, lease_duration=10)
    with pytest.raises(LockNotOwnedError):
        await lock.refresh()
    await lock.acquire()
    await clock.advance(11)
    with pytest.raises(LockNotOwnedError):
        await lock.refresh()


async def test_work_that_outlasts_the_lease_learns_of_it_at_the_end(
    provider: MemoryProvider, clock: ManualClock
) -> None:
    with pytest.raises(LockNotOwnedError):
        async with TaskLock("cleanup", backend=provider, lease_duration=10):
            await clock.advance(11)


@pytest.mark.parametrize("options", [{"min_hold_duration": 61}, {"lease_duration": 0.5}, {"min_hold_duration": -1}])
async def test_a_minimal_hold_longer_than_the_lease_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(SettingsValidationError):
        TaskLock("cleanup", **options)  # type: ignore[arg-type]  # a dict of floats fits some of the options


async def test_it_does_not_share_a_key_with_a_lock_of_the_same_name(provider: MemoryProvider) -> None:
    async with TaskLock("x", backend=provider):
        assert [key async for key in provider.backend.crew().store.keys("")] == ["tasklock:x"]


async def test_a_store_that_is_down_is_no_reason_to_skip() -> None:
    async with fleet(1) as (_, processes):
        processes[0].wire.cut = True
        with pytest.raises(BackendError):
            await TaskLock("cleanup", backend=processes[0]).acquire()


async def test_no_message_names_a_token(provider: MemoryProvider) -> None:
    lock = TaskLock("cleanup", backend=provider)
    async with lock as handle:
        with pytest.raises(WouldBlockError) as refused:
            await asyncio.create_task(TaskLock("cleanup", backend=provider, worker="other").acquire())
        for text in (str(refused.value), repr(handle), repr(lock)):
            assert handle.lease.token not in text
            assert handle.lease.token.split(":")[-1] not in text
