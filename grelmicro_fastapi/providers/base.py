"""What every provider is: the owner of one place's connections, a set for each running loop."""

import asyncio
import logging
import weakref
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, Self, cast

from grelmicro_fastapi.context import Openable
from grelmicro_fastapi.coordination.backend import Backend
from grelmicro_fastapi.coordination.clock import Clock, SystemClock
from grelmicro_fastapi.coordination.crew import Crew
from grelmicro_fastapi.coordination.state import VERSION
from grelmicro_fastapi.coordination.store import Scope, Store
from grelmicro_fastapi.errors import BackendError, NotRunningError

_log = logging.getLogger("grelmicro_fastapi.providers")


class _Opened:
    """What one loop has open. Its crew counts how many opened it."""

    def __init__(self, store: Store, crew: Crew) -> None:
        self.store = store
        self.crew = crew
        self.ready = False
        self.turn = asyncio.Lock()


class Provider(Openable):
    """Connections to one place that keeps states.

    A value until it is opened: making one does no I/O and needs no loop. Each running loop that opens it gets
    connections of its own, and they are counted: the last `close` on a loop gives them back. It may be opened again.
    """

    name: ClassVar[str]
    """What logs and metrics call it, such as "redis"."""
    scope: ClassVar[Scope]
    """How far its word reaches."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.backend = Backend(self.name)
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Opened] = weakref.WeakKeyDictionary()

    @classmethod
    def from_url(cls, url: str, *, clock: Clock | None = None) -> Self:
        """Make one for the place that the URL names."""
        # The first argument of every provider that has a place is its URL.
        return cast("Callable[..., Self]", cls)(url, clock=clock)

    @abstractmethod
    def _store(self) -> Store:
        """A fresh store for the running loop, not opened yet."""

    def lock(self) -> Backend:
        """Where a `Lock` keeps its state."""
        return self.backend

    def readwritelock(self) -> Backend:
        """Where a `ReadWriteLock` keeps its state."""
        return self.backend

    def tasklock(self) -> Backend:
        """Where a `TaskLock` keeps its state."""
        return self.backend

    def leaderelection(self) -> Backend:
        """Where a `LeaderElection` keeps its state."""
        return self.backend

    async def open(self) -> None:
        """Connect on the running loop.

        A store that is down is no error here: one warning is logged, and every later call tries again. Raises
        `SettingsValidationError` if a setting has a value it cannot have.
        """
        loop = asyncio.get_running_loop()
        opened = self._loops.get(loop) or self._prepare(loop)
        opened.crew.users += 1
        try:
            async with opened.turn:
                if not opened.ready:
                    await self._connect(opened.store)
                    opened.crew.start()
                    self.backend.attach(loop, opened.crew)
                    opened.ready = True
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Undo one `open` on this loop; the last one gives the connections back. Does nothing if none is left."""
        loop = asyncio.get_running_loop()
        opened = self._loops.get(loop)
        if opened is None:
            return
        opened.crew.users -= 1
        if opened.crew.users:
            return
        del self._loops[loop]
        try:
            if opened.ready:
                self.backend.detach(loop)
                await opened.crew.close()
        finally:
            await opened.store.close()

    async def check(self) -> None:
        """Ask the store for a sign of life. Raises `BackendError` if it gives none."""
        opened = self._loops.get(asyncio.get_running_loop())
        if opened is None:
            raise NotRunningError(f"the {self.name} provider is not open on this event loop: open it first")
        await opened.store.peek("check:")

    def _prepare(self, loop: asyncio.AbstractEventLoop) -> _Opened:
        # A loop that ended without closing us would be kept alive by what hangs on it.
        for dead in [other for other in self._loops if other.is_closed()]:
            del self._loops[dead]
            self.backend.detach(dead)
        store = self._store()
        opened = self._loops[loop] = _Opened(store, Crew(store, self.clock))
        return opened

    async def _connect(self, store: Store) -> None:
        try:
            await store.open()
        except BackendError as error:
            _log.warning("%s cannot be reached yet, going on without it: %s", self.name, error)


def newer(key: str, version: int) -> BackendError:
    """The answer when a state was written by a newer release of this library."""
    return BackendError(
        f"the state of {key!r} has version {version} and this release knows {VERSION}: upgrade grelmicro-fastapi here"
    )
