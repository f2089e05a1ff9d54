"""Guards for tests: real ones, of a lock that nobody else sees."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

from fastapi import FastAPI

from grelmicro_fastapi.coordination.guards import LockHandle, ReadGuard, WriteGuard
from grelmicro_fastapi.coordination.lock import Lock
from grelmicro_fastapi.coordination.readwritelock import ReadWriteLock
from grelmicro_fastapi.coordination.state import Advance
from grelmicro_fastapi.providers.memory import MemoryProvider
from grelmicro_fastapi.testing.clock import ManualClock
from grelmicro_fastapi.web.routes import routes, solved

G = TypeVar("G", ReadGuard, WriteGuard, LockHandle)

_LEASE: Final = 60.0


def fake_guard(
    kind: type[G], *, name: str = "fake", token: int = 1, poisoned: bool = False, lost: bool = False
) -> Callable[[], AsyncGenerator[G, None]]:
    """A dependency that gives a guard of that kind, held by nobody else, instead of one that must be acquired.

        app.dependency_overrides[write_guard("catalog")] = fake_guard(WriteGuard, token=7)

    `token` is its fencing token or generation. With `lost`, its lease has ended already: `check()` raises. Raises
    `ValueError` if `token` is too low to exist: a writer's is at least 1, and one more where it is poisoned.
    """
    lowest = (kind is not ReadGuard) + poisoned
    if token < lowest or (poisoned and kind is LockHandle):
        raise ValueError(f"no {kind.__name__} can have this: token is at least {lowest}, and a LockHandle is no poison")

    async def guard() -> AsyncGenerator[G, None]:
        clock = ManualClock()
        memory = MemoryProvider(clock=clock)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(memory)
            held: Any = await _acquire(memory, kind, name, token, poisoned)
            if lost:
                clock.jump(_LEASE)
            yield held

    return guard


def override(app: FastAPI, name: str, fake: Callable[..., Any]) -> int:
    """Give `fake` instead of every guard that names `name` alone, whatever its options. How many guards were found.

    They are put into `app.dependency_overrides`; clear those to undo it. A mounted app has overrides of its own.
    Raises `LookupError` if there is no such guard: a test that overrides nothing proves nothing.
    """
    found = {
        dependant.call
        for route in routes(app, mounted=False)
        for dependant in solved(route.dependant)
        if (guard := route.guard_of(dependant)) and guard.options.names == (name,) and dependant.call
    }
    if not found:
        raise LookupError(f"no route of this app has a guard of {name!r}")
    for replaced in found:
        app.dependency_overrides[replaced] = fake
    return len(found)


async def _acquire(memory: MemoryProvider, kind: type[Any], name: str, token: int, poisoned: bool) -> Any:
    lock = ReadWriteLock(name, backend=memory, lease_duration=_LEASE)
    before = token - (kind is not ReadGuard) - poisoned
    if before:
        key = f"{'lock' if kind is LockHandle else 'rwlock'}:{name}"
        await memory.backend.crew().courier.ask(key, Advance("fake", before))
    if poisoned:
        await (await lock.write.acquire()).release(poison=True)
    if kind is LockHandle:
        return await Lock(name, backend=memory, lease_duration=_LEASE).acquire()
    return await (lock.read if kind is ReadGuard else lock.write).acquire()
