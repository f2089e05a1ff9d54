"""The bridge for code that runs in threads: `with lock.from_thread as guard`.

A call is carried out on the loop that has the lock open, while the thread waits. The guard is the very type that
`async with` binds, so functions that demand one take it from both worlds.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import wait
from types import TracebackType
from typing import Generic, TypeVar

from grelmicro_fastapi import context
from grelmicro_fastapi.coordination.backend import Source
from grelmicro_fastapi.coordination.guards import Guard
from grelmicro_fastapi.coordination.identity import ThreadOwner, acting_for
from grelmicro_fastapi.coordination.view import Held, View
from grelmicro_fastapi.errors import EventLoopDeadlockError, NotRunningError

G = TypeVar("G", bound=Guard)
T = TypeVar("T")

_thread = threading.local()


def this_thread() -> ThreadOwner:
    """Who this thread is to the locks. Ends with the thread, so the next one with its number is somebody else."""
    owner: ThreadOwner | None = getattr(_thread, "owner", None)
    if owner is None:
        owner = _thread.owner = ThreadOwner()
    return owner


def call(source: Source | None, act: Callable[[], Awaitable[T]]) -> T:
    """Run `act` for this thread on the loop where `source` (or the open app) is, and wait for it.

    Raises `EventLoopDeadlockError` if that loop runs in this very thread, `NotRunningError` if there is no such loop or
    it stops meanwhile.
    """
    loop = _home(source)
    who = this_thread()

    async def acting() -> T:
        acting_for.set(who)
        return await act()

    future = asyncio.run_coroutine_threadsafe(acting(), loop)
    try:
        while not wait([future], timeout=1.0).done:
            if not loop.is_running():
                raise NotRunningError("the event loop that has this lock open has stopped: start the service again")
        return future.result()
    except BaseException:
        future.cancel()
        raise


class ThreadHeld(Generic[G]):
    """What a thread can do with what can be held. Entering and leaving may happen in different threads."""

    def __init__(self, held: Held[G]) -> None:
        self._held = held
        self._entered: list[tuple[ThreadOwner, G]] = []
        self._mutex = threading.Lock()

    def extend(self) -> None:
        """Extend what this thread acquired through the lock. Raises as `Guard.extend`."""
        self._call(self._held.extend)

    def release(self) -> None:
        """Release what this thread acquired through the lock, and never another's. Raises as the guard's `release`."""
        self._call(self._held.release)

    def locked(self) -> bool:
        """Ask the store: does anybody hold it, in any mode?"""
        return self._call(self._held.locked)

    def owned(self) -> bool:
        """Ask the store: is what this thread acquired through the lock still held?"""
        return self._call(self._held.owned)

    def __enter__(self) -> G:
        guard = self._call(self._held.enter)
        with self._mutex:
            self._entered.append((this_thread(), guard))
        return guard

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        me = this_thread()
        with self._mutex:
            mine = [entry for entry in self._entered if entry[0] is me]
            # A generator may be entered in one thread and left in another: then it is the only one, or nobody knows.
            if not mine and len(self._entered) > 1:
                raise RuntimeError(
                    f"{self._held.name!r} was entered by several threads through one object and is left by yet "
                    "another: use `with lock.from_thread` anew in each place"
                )
            entry = (mine or self._entered)[-1]
            self._entered.remove(entry)
        self._call(lambda: entry[1].leave(error))

    def _call(self, act: Callable[[], Awaitable[T]]) -> T:
        return call(self._held.source, act)


class ThreadView(ThreadHeld[G]):
    """One mode of a lock, for code that runs in a thread. Every call blocks the thread until it is answered."""

    def __init__(self, view: View[G]) -> None:
        super().__init__(view)
        self._view = view

    def acquire(self, *, timeout: float | None = None) -> G:
        """Acquire as `View.acquire`. Also raises `EventLoopDeadlockError` on the loop's own thread."""
        return self._call(lambda: self._view.acquire(timeout=timeout))

    def acquire_nowait(self) -> G:
        """Acquire in one attempt. Raises `WouldBlockError` if somebody else holds it."""
        return self._call(self._view.acquire_nowait)


def _home(source: Source | None) -> asyncio.AbstractEventLoop:
    loops = context.loops() if source is None else source.backend.loops()
    here = context.running_loop()
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is not None and running in loops:
        raise EventLoopDeadlockError(
            "from_thread was used on the event loop that would have to answer: in async code use `async with lock`, "
            "and run blocking code in a thread (a `def` handler, anyio.to_thread.run_sync)"
        )
    if here is not None and here in loops:
        return here
    if len(loops) == 1:
        return loops[0]
    if not loops:
        raise NotRunningError("no event loop has this lock open: open its provider, or the app that uses it, first")
    raise NotRunningError(f"{len(loops)} event loops have this lock open: call from a worker thread of one of them")
