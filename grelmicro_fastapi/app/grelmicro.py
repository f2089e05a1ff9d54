"""The app: what a service uses for its locks, opened and closed with it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

from fastapi import APIRouter, params
from starlette.applications import Starlette

from grelmicro_fastapi import context
from grelmicro_fastapi.app.leaving import ends, parts_close, released, told_to_stop, vacated
from grelmicro_fastapi.app.runtime import Opened, Runtime
from grelmicro_fastapi.app.signals import Signals
from grelmicro_fastapi.app.workers import several_in_memory
from grelmicro_fastapi.context import Openable
from grelmicro_fastapi.coordination.backend import Backend
from grelmicro_fastapi.coordination.coordination import Coordination
from grelmicro_fastapi.coordination.leaderelection import LeaderElection
from grelmicro_fastapi.errors import SettingsValidationError
from grelmicro_fastapi.providers.base import Provider
from grelmicro_fastapi.settings import seconds
from grelmicro_fastapi.tasks.tasks import Tasks
from grelmicro_fastapi.web.health import health_router
from grelmicro_fastapi.web.install import install

Part = Provider | Coordination | AbstractAsyncContextManager[Any]

_log = logging.getLogger("grelmicro_fastapi.app")


class Grelmicro(Openable):
    """Everything a service coordinates with.

        micro = Grelmicro(uses=[RedisProvider()])
        app = FastAPI(lifespan=micro.lifespan)

    `uses` takes providers, a `Coordination`, and any other async context manager; `None` is skipped. Whatever the
    order, stores open first and tasks last, and all close in reverse. The first `Coordination` answers for guards and
    locks that name no `backend=`; without one, the provider does. A value until it is opened: no connection and no loop
    at import. It may be opened again, and on several loops.

    When the server is told to stop, or at the latest when the lifespan ends, leaders resign and waiting requests are
    sent away at once; at the end of the lifespan the guards still held get `drain` seconds to be released. With
    `strict`, an app that it is installed in does not start on a finding of the lint.
    """

    def __init__(self, uses: Iterable[Part | None] = (), *, drain: float = 5.0, strict: bool = False) -> None:
        self._drain = seconds("drain=", drain)
        self._strict = strict
        parts = _parts(uses)
        self._stores = [part for part in parts if isinstance(part, Provider | Coordination)]
        # A provider before a `Coordination` that stands on it, if both are listed.
        self._stores.sort(key=lambda part: isinstance(part, Coordination))
        # Bodies may use whatever else is listed, and an election resigns after the bodies that it lets lead.
        self._leading = [part for part in parts if isinstance(part, Tasks | LeaderElection)]
        self._leading.sort(key=lambda part: isinstance(part, Tasks))
        ours = Provider | Coordination | Tasks | LeaderElection
        self._others = [part for part in parts if not isinstance(part, ours)]
        self.coordination = _default(self._stores)
        """What answers for the app's locks, or `None`."""
        if self.coordination is not None and self.coordination not in self._stores:
            self._stores.append(self.coordination)
        self._stand_in: Provider | None = None
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Opened] = WeakKeyDictionary()

    def lifespan(self, app: object) -> AbstractAsyncContextManager[Mapping[str, Any]]:
        """For `FastAPI(lifespan=micro.lifespan)`: open on start-up, close on shutdown."""
        return self._lifespan()

    def install(self, app: Starlette) -> None:
        """Open and close with the app, and give it whole answers to errors, entity tags and OpenAPI. Safe to repeat.

        The app's own lifespan runs inside. Raises `RuntimeError` if the app has served already, `ValueError` if
        another `Grelmicro` is installed in it.
        """
        install(app, self, strict=self._strict)

    @property
    def elections(self) -> Collection[str]:
        """The names of the elections that the app stands in: those among its parts, and those of its `Tasks`."""
        return _elections(self._leading).keys()

    def health_router(self, dependencies: Sequence[params.Depends] = ()) -> APIRouter:
        """`/livez`, `/readyz` and `/healthz`, for `app.include_router`.

        Alive is whoever answers. Ready, 200, is who was not told to stop and reaches its stores; otherwise it is 503.
        `/healthz` tells of stores, elections and tasks, and never a secret; `dependencies` guard it, and it alone.
        """
        return health_router(dependencies)

    async def open(self) -> Runtime:
        """Open everything on the running loop. Counted: each call needs its `close`.

        A store that is down is no error, it is tried again on every use. Raises `SettingsValidationError` if a setting
        has a value it cannot have, and whatever the other parts raise; then nothing is left open.
        """
        loop = asyncio.get_running_loop()
        opened = self._loops.get(loop)
        if opened is None:
            tasks = [part for part in self._leading if isinstance(part, Tasks)]
            opened = self._loops[loop] = Opened(Runtime(self.coordination, _elections(self._leading), tasks))
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
            ends(opened)
            await opened.stack.aclose()

    @asynccontextmanager
    async def _lifespan(self) -> AsyncGenerator[Mapping[str, Any], None]:
        runtime = await self.open()
        try:
            yield {"grelmicro": runtime}
        finally:
            await self.close()

    @contextmanager
    def standing_in(self, provider: Provider) -> Generator[None, None, None]:
        """For tests: what is opened inside keeps its states in this provider, and none of its own is connected."""
        before, self._stand_in = self._stand_in, provider
        try:
            yield
        finally:
            self._stand_in = before

    async def _stand(self, opened: Opened, provider: Provider) -> None:
        await opened.stack.enter_async_context(provider)
        loop, crew = asyncio.get_running_loop(), provider.backend.crew()
        opened.crews[provider.backend] = crew
        opened.opens[crew] += 1
        for store in self._stores:
            for backend in _backends(store):
                backend.attach(loop, crew)
                opened.stack.callback(backend.detach, loop)

    async def _enter(self, opened: Opened) -> None:
        stack, crews = opened.stack, opened.crews
        if self._stand_in is not None:
            await self._stand(opened, self._stand_in)
        for store in self._stores if self._stand_in is None else ():
            await stack.enter_async_context(store)
            for backend in _backends(store):
                if backend not in crews:
                    crews[backend] = backend.crew()
                    stack.push_async_callback(vacated, backend, crews[backend])
                opened.opens[crews[backend]] += 1
        if count := several_in_memory([crew.store.scope for crew in crews.values()]):
            opened.runtime.notes.append(f"memory is per process, and {count} workers run")
            _log.warning(
                "%d workers, and a store that reaches one process only: each has locks of its own, which exclude "
                "nobody in the others. SqliteProvider reaches all processes of one machine",
                count,
            )
        # From here on the app answers on this loop: what opens now may use its locks.
        context.opened(opened.runtime)
        stack.callback(context.closed, opened.runtime)
        for part in self._others:
            await stack.enter_async_context(part)
        stack.callback(parts_close, opened)
        # Requests that hold guards may still use the parts.
        for crew in crews.values():
            stack.push_async_callback(released, crew, self._drain)
        for leading in self._leading:
            await stack.enter_async_context(leading)
        signals = Signals(partial(told_to_stop, opened))
        signals.chain()
        stack.callback(signals.restore)


def _parts(uses: object) -> list[Part]:
    if isinstance(uses, str | bytes) or not isinstance(uses, Iterable):
        raise SettingsValidationError(
            f"uses= takes a list of parts, such as uses=[RedisProvider()], and no {type(uses).__name__} by itself"
        )
    parts: list[Part] = []
    for part in cast("Iterable[object]", uses):
        if isinstance(part, Provider | Coordination | AbstractAsyncContextManager):
            parts.append(cast("Part", part))
        elif part is not None:
            kind = (
                f"the class {part.__name__}: call it"
                if isinstance(part, type)
                else f"what is of type {type(part).__name__}"
            )
            raise SettingsValidationError(
                f"uses= takes providers, Coordination, Tasks and other async context managers, and not {kind}"
            )
    return parts


def _backends(store: Provider | Coordination) -> list[Backend]:
    """Where it keeps locks, and where it elects leaders, if that is elsewhere."""
    elects = store.election if isinstance(store, Coordination) else store
    return list(dict.fromkeys([store.backend, elects.backend]))


def _elections(parts: Iterable[Tasks | LeaderElection]) -> dict[str, LeaderElection]:
    elections = (part.election if isinstance(part, Tasks) else part for part in parts)
    return {election.name: election for election in elections}


def _default(stores: list[Provider | Coordination]) -> Coordination | None:
    listed = [part for part in stores if isinstance(part, Coordination)]
    if listed:
        return listed[0]
    providers = [part for part in stores if isinstance(part, Provider)]
    if len(providers) > 1:
        names = " and ".join(provider.name for provider in providers)
        raise SettingsValidationError(f"uses= has {names}: list Coordination(...) to say which keeps the locks")
    return Coordination(providers[0]) if providers else None
