# pyright: reportUnnecessaryTypeIgnoreComment=true
"""Never run, only checked: each `type: ignore` is a mistake that a type checker must see, or it is an error itself."""

from typing import assert_type

from grelmicro_fastapi.coordination import Guard, Lock, LockHandle, ReadGuard, ReadWriteLock, TaskLock, WriteGuard
from grelmicro_fastapi.providers.memory import MemoryProvider


def reads(guard: ReadGuard) -> int:
    return guard.generation


def writes(guard: WriteGuard) -> int:
    return guard.fencing_token


def works(handle: LockHandle) -> int:
    return handle.fencing_token


def either(guard: Guard) -> bool:
    return guard.valid


async def the_right_guard_is_taken(lock: Lock, catalog: ReadWriteLock, task: TaskLock) -> None:
    async with lock as handle, catalog.read as reading, catalog.write as writing, task as run:
        assert_type(handle, LockHandle)
        assert_type(reading, ReadGuard)
        assert_type(writing, WriteGuard)
        assert_type(run, LockHandle)
        assert_type(await writing.downgrade(), ReadGuard)
        works(handle)
        reads(reading)
        writes(writing)
        for guard in (handle, reading, writing):
            either(guard)
    assert_type(await lock.acquire(timeout=1), LockHandle)
    assert_type(await catalog.read.acquire_nowait(), ReadGuard)
    assert_type(await catalog.write.acquire(expect=7), WriteGuard)
    with lock.from_thread as handle, catalog.read.from_thread as reading, catalog.write.from_thread as writing:
        assert_type(handle, LockHandle)
        assert_type(reading, ReadGuard)
        assert_type(writing, WriteGuard)


async def the_wrong_guard_is_refused(lock: Lock, catalog: ReadWriteLock) -> None:
    async with lock as handle, catalog.read as reading, catalog.write as writing:
        writes(reading)  # type: ignore[arg-type]
        writes(handle)  # type: ignore[arg-type]
        reads(writing)  # type: ignore[arg-type]
        reads(handle)  # type: ignore[arg-type]
        works(reading)  # type: ignore[arg-type]
        works(writing)  # type: ignore[arg-type]
        _ = reading.fencing_token  # type: ignore[attr-defined]
        _ = writing.generation  # type: ignore[attr-defined]
        _ = handle.poisoned  # type: ignore[attr-defined]
        await reading.downgrade()  # type: ignore[attr-defined]
        await reading.release(poison=True)  # type: ignore[call-arg]
        await catalog.read.acquire(expect=7)  # type: ignore[call-arg]


def options_are_known(provider: MemoryProvider) -> None:
    Lock("x", backend=provider, lease_duration=5, keep_alive=True, on_lost="cancel")
    ReadWriteLock("x", backend=provider.readwritelock(), worker="me", max_hold=9)
    Lock("x", color="red")  # type: ignore[call-arg]
    Lock("x", on_lost="ignore")  # type: ignore[arg-type]
    Lock("x", backend="redis://here")  # type: ignore[arg-type]
