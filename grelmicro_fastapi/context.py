"""What is open on which event loop, and which app answers for a noun that was given no `backend=`."""

import asyncio
import threading
from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop
from types import TracebackType
from typing import Protocol, Self
from weakref import WeakKeyDictionary

from anyio import from_thread

from grelmicro_fastapi.errors import NotRunningError

_NONE_OPEN = (
    "no Grelmicro app is open on this event loop. In a service: FastAPI(lifespan=micro.lifespan) or micro.install(app);"
    " a mounted sub-app never runs a lifespan of its own, so give it to the app it is mounted on. In a test:"
    " `with TestClient(app)`, or LifespanManager(app) and then its `.app`, which carries the state. In a script:"
    " `async with micro`. Or pass backend=, which asks no app."
)
_SEVERAL_OPEN = "{} Grelmicro apps are open on this event loop: pass backend= to say which one is meant."


class Openable(ABC):
    """What is open between `open` and `close`, or inside `async with`."""

    @abstractmethod
    async def open(self) -> object:
        """Begin, on the running loop. Counted where that is said."""

    @abstractmethod
    async def close(self) -> None:
        """Undo one `open`."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class App(Protocol):
    """What the floors below know of an app."""

    @property
    def coordination(self) -> object:
        """What answers for the app's locks."""


_apps: WeakKeyDictionary[AbstractEventLoop, tuple[App, ...]] = WeakKeyDictionary()
_mutex = threading.Lock()


def opened(app: App) -> None:
    """Let this app answer on the running loop. Counted: each call needs its `closed`."""
    loop = asyncio.get_running_loop()
    with _mutex:
        # An app may hold its loop, so a loop that ended without closing its app would never be freed.
        for other in [other for other in _apps if other.is_closed()]:
            del _apps[other]
        _apps[loop] = (*_apps.get(loop, ()), app)


def closed(app: App) -> None:
    """End one `opened` of this app on the running loop. Does nothing if there is none."""
    loop = asyncio.get_running_loop()
    with _mutex:
        apps = list(_apps.pop(loop, ()))
        for place, other in enumerate(apps):
            if other is app:
                del apps[place]
                break
        if apps:
            _apps[loop] = tuple(apps)


def current() -> App:
    """The one app open on the running loop, or on the loop that started this worker thread.

    Raises `NotRunningError` if there is none, or more than one.
    """
    loop = running_loop()
    apps = _apps.get(loop, ()) if loop else ()
    if len(apps) == 1:
        return apps[0]
    if not apps:
        raise NotRunningError(_NONE_OPEN)
    if any(app is not apps[0] for app in apps):
        raise NotRunningError(_SEVERAL_OPEN.format(len({id(app) for app in apps})))
    return apps[0]


def running_loop() -> AbstractEventLoop | None:
    """The loop that runs in this thread, or the one that started this worker thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        pass
    try:
        return from_thread.run_sync(asyncio.get_running_loop)
    except RuntimeError:  # not one of anyio's worker threads, or its loop has ended
        return None


def loops() -> list[AbstractEventLoop]:
    """Every loop on which an app is open."""
    with _mutex:
        return [loop for loop in _apps if not loop.is_closed()]
