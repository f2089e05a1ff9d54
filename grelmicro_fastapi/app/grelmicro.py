"""The app: what a service uses for its locks, opened and closed with it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Final, Self
from weakref import WeakKeyDictionary

from starlette.applications import Starlette

from grelmicro_fastapi import context
from grelmicro_fastapi.coordination.backend import Backend
from grelmicro_fastapi.coordination.coordination import Coordination
from grelmicro_fastapi.errors import BackendError, SettingsValidationError
from grelmicro_fastapi.providers.base import Provider
from grelmicro_fastapi.web.install import install

Part = Provider | Coordination | AbstractAsyncContextManager[Any]

_TIDYING: Final = 5.0
"""Seconds for burying what is dead, at the end. Leases end without it."""
_log = logging.getLogger("grelmicro_fastapi.app")


class Runtime:
    """The app as one loop has it open. Requests find it in their state under "grelmicro"."""

    def __init__(self, coordination: Coordination | None) -> None:
        self.coordination = coordination


class _Opened:
    """What one loop has open, and how many opened it."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.stack = AsyncExitStack()
        self.users = 0
        self.ready = False
        self.turn = asyncio.Lock()


class Grelmicro:
    """Everything a service coordinates with.

        micro = Grelmicro(uses=[RedisProvider()])
        app = FastAPI(lifespan=micro.lifespan)

    `uses` takes providers, a `Coordination`, and any other async context manager; `None` is skipped. Whatever the
    order, stores open first, and all close in reverse. The first `Coordination` answers for guards and locks that name
    no `backend=`; without one, the provider does. A value until it is opened: no connection and no loop at import. It
    may be opened again, and on several loops.
    """

    def __init__(self, uses: Iterable[Part | None] = ()) -> None:
        parts = [part for part in uses if part is not None]
        self._stores = [part for part in parts if isinstance(part, Provider | Coordination)]
        # A provider before a `Coordination` that stands on it, if both are listed.
        self._stores.sort(key=lambda part: isinstance(part, Coordination))
        self._others = [part for part in parts if not isinstance(part, Provider | Coordination)]
        self.coordination = _default(self._stores)
        """What answers for the app's locks, or `None`."""
        if self.coordination is not None and self.coordination not in self._stores:
            self._stores.append(self.coordination)
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Opened] = WeakKeyDictionary()

    def lifespan(self, app: object) -> AbstractAsyncContextManager[Mapping[str, Any]]:
        """For `FastAPI(lifespan=micro.lifespan)`: open on start-up, close on shutdown."""
        return self._lifespan()

    def install(self, app: Starlette) -> None:
        """Open and close with the app, and give it whole answers to errors, entity tags and OpenAPI. Safe to repeat.

        The app's own lifespan runs inside. Raises `RuntimeError` if the app has served already, `ValueError` if
        another `Grelmicro` is installed in it.
        """
        install(app, self)

    async def open(self) -> Runtime:
        """Open everything on the running loop. Counted: each call needs its `close`.

        A store that is down is no error, it is tried again on every use. Raises `SettingsValidationError` if a setting
        has a value it cannot have, and whatever the other parts raise; then nothing is left open.
        """
        loop = asyncio.get_running_loop()
        opened = self._loops.get(loop)
        if opened is None:
            opened = self._loops[loop] = _Opened(Runtime(self.coordination))
        opened.users += 1
        try:
            async with opened.turn:
                if not opened.ready:
                    await self._enter(opened)
                    opened.ready = True
        except BaseException:
            await self.close()
            raise
        return opened.runtime

    async def close(self) -> None:
        """Undo one `open` on this loop. The last one closes everything, whatever goes wrong on the way."""
        loop = asyncio.get_running_loop()
        opened = self._loops.get(loop)
        if opened is None:
            return
        opened.users -= 1
        if opened.users == 0:
            del self._loops[loop]
            await opened.stack.aclose()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @asynccontextmanager
    async def _lifespan(self) -> AsyncGenerator[Mapping[str, Any], None]:
        runtime = await self.open()
        try:
            yield {"grelmicro": runtime}
        finally:
            await self.close()

    async def _enter(self, opened: _Opened) -> None:
        stack, tidied = opened.stack, list[Backend]()
        for store in self._stores:
            await stack.enter_async_context(store)
            if store.backend not in tidied:
                tidied.append(store.backend)
                stack.push_async_callback(_vacate, store.backend)
        # From here on the app answers on this loop: what opens now may use its locks.
        context.opened(opened.runtime)
        stack.callback(context.closed, opened.runtime)
        for part in self._others:
            await stack.enter_async_context(part)


async def _vacate(backend: Backend) -> None:
    """Bury what is dead in a store that is about to be closed."""
    try:
        async with asyncio.timeout(_TIDYING):
            await backend.crew().store.vacate()
    except (BackendError, TimeoutError) as trouble:
        _log.warning("the %s store was not tidied up, which does no harm: %s", backend.name, trouble)


def _default(stores: list[Provider | Coordination]) -> Coordination | None:
    listed = [part for part in stores if isinstance(part, Coordination)]
    if listed:
        return listed[0]
    providers = [part for part in stores if isinstance(part, Provider)]
    if len(providers) > 1:
        names = " and ".join(provider.name for provider in providers)
        raise SettingsValidationError(f"uses= has {names}: list Coordination(...) to say which keeps the locks")
    return Coordination(providers[0]) if providers else None
