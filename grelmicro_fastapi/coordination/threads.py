"""The bridge for code that runs in threads: `with lock.from_thread as guard`.

A call is carried out on the loop that has the lock open, while the thread waits. The guard is the very type that
`async with` binds, so functions that demand one take it from both worlds.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import wait
from types import TracebackType
from typing import Generic, NamedTuple, TypeVar

from grelmicro_fastapi import context
from grelmicro_fastapi.coordination.backend import Source
from grelmicro_fastapi.coordination.guards import Guard
from grelmicro_fastapi.coordination.identity import ThreadOwner, acting_for
from grelmicro_fastapi.coordination.view import Held, View
from grelmicro_fastapi.errors import CoordinationError, EventLoopDeadlockError, NotRunningError

_log = logging.getLogger("grelmicro_fastapi.coordination")

G = TypeVar("G", bound=Guard)
T = TypeVar("T")

_thread = threading.local()


def this_thread() -> ThreadOwner:
    """Who this thread is to the locks. Ends with the thread, so the next one with its number is somebody else."""
    owner: ThreadOwner | None = getattr(_thread, "owner", None)
    if owner is None:
        owner = _thread.owner = ThreadOwner()
    return owner


def call(loop: asyncio.AbstractEventLoop, act: Callable[[], Awaitable[T]]) -> T:
    """Run `act` for this thread on that loop, and wait for it. A guard that nobody waits for any more is given back.

    Raises `NotRunningError` if the loop stops meanwhile.
    """
    errand = _Errand(act, this_thread())
    future = asyncio.run_coroutine_threadsafe(errand.run(), loop)
    try:
        while not wait([future], timeout=1.0).done:
            if not loop.is_running():
                raise NotRunningError("the event loop that has this lock open has stopped: start the service again")
        return future.result()
    except BaseException:
        future.cancel()
        # The guard may have come in the same moment as Ctrl-C.
        if (guard := errand.give_up()) and not loop.is_closed():
            loop.call_soon_threadsafe(_let_go, guard)
        raise


class _Errand(Generic[T]):
    """What a thread asked for. Either the thread gets the result, or it is known that it did not."""

    def __init__(self, act: Callable[[], Awaitable[T]], who: ThreadOwner) -> None:
        self._act = act
        self._who = who
        self._mutex = threading.Lock()
        self._guard: Guard | None = None
        self._given_up = False

    async def run(self) -> T:
        acting_for.set(self._who)
        result = await self._act()
        if isinstance(result, Guard):
            with self._mutex:
                self._guard = result
                given_up = self._given_up
            if given_up:
                _let_go(result)
        return result

    def give_up(self) -> Guard | None:
        with self._mutex:
            self._given_up = True
            return self._guard


_leaving: set[asyncio.Task[None]] = set()


def _let_go(guard: Guard, error: BaseException | None = None) -> None:
    """Leave a guard on its loop, where nobody can wait for that."""

    async def leave() -> None:
        try:
            await guard.leave(error)
        except CoordinationError as trouble:
            _log.warning(
                "a guard of %r was left on the event loop, and its release went wrong: %s", guard.name, trouble
            )

    task = asyncio.get_running_loop().create_task(leave())
    _leaving.add(task)
    task.add_done_callback(_leaving.discard)


class _Entry(NamedTuple, Generic[G]):
    """A body that was entered: by whom, and on which loop its guard lives."""

    who: ThreadOwner
    loop: asyncio.AbstractEventLoop
    guard: G


class ThreadHeld(Generic[G]):
    """What a thread can do with what can be held. Entering and leaving may happen in different threads."""

    def __init__(self, held: Held[G]) -> None:
        self._held = held
        self._entered: list[_Entry[G]] = []
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
        loop = _home(self._held.source)
        guard = call(loop, self._held.enter)
        with self._mutex:
            self._entered.append(_Entry(this_thread(), loop, guard))
        return guard

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entry = self._last_entered()
        if entry.loop is _running():
            # The garbage collector ends generators in whichever thread it runs in. It must not wait for itself.
            _let_go(entry.guard, error)
        else:
            call(entry.loop, lambda: entry.guard.leave(error))

    def _last_entered(self) -> "_Entry[G]":
        me = this_thread()
        with self._mutex:
            mine = [entry for entry in self._entered if entry.who is me]
            if not self._entered:
                raise RuntimeError(
                    f"{self._held.name!r} was not entered through this object: use `with lock.from_thread`"
                )
            # A generator may be entered in one thread and left in another: then it is the only one, or nobody knows.
            if not mine and len(self._entered) > 1:
                raise RuntimeError(
                    f"{self._held.name!r} was entered by several threads through one object and is left by yet "
                    "another: use `with lock.from_thread` anew in each place"
                )
            entry = (mine or self._entered)[-1]
            self._entered.remove(entry)
            return entry

    def _call(self, act: Callable[[], Awaitable[T]]) -> T:
        return call(_home(self._held.source), act)


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
    running = _running()
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


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
