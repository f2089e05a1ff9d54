"""The handle that nouns are given: a value, usable at import time, that knows the crew of each running loop."""

import asyncio
import weakref
from typing import Protocol, runtime_checkable

from grelmicro_fastapi import context
from grelmicro_fastapi.coordination.crew import Crew
from grelmicro_fastapi.errors import NotRunningError, SettingsValidationError


class Backend:
    """Where nouns keep their states. Made by a provider; `provider.lock()` and its kind return it."""

    def __init__(self, name: str = "backend") -> None:
        self.name = name
        self._crews: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Crew] = weakref.WeakKeyDictionary()
        self._latest: tuple[asyncio.AbstractEventLoop | None, Crew | None] = (None, None)

    @property
    def backend(self) -> "Backend":
        """Itself, so that it may be given wherever a provider may."""
        return self

    def crew(self) -> Crew:
        """The crew that works on the running loop. Raises `NotRunningError` if its provider is not open here."""
        loop = asyncio.get_running_loop()
        # Nearly every process has one loop: remember it, a weak map costs more than the rest of the call.
        # One object, because loops in other threads come by here too.
        latest, crew = self._latest
        if latest is loop and crew:
            return crew
        try:
            return self._crews[loop]
        except KeyError:
            raise NotRunningError(
                f"the {self.name} provider is not open on this event loop: enter `async with provider`, or open the "
                "app that uses it (lifespan=micro.lifespan)"
            ) from None

    def loops(self) -> list[asyncio.AbstractEventLoop]:
        """Every loop on which its provider is open."""
        return [loop for loop in self._crews if not loop.is_closed()]

    def attach(self, loop: asyncio.AbstractEventLoop, crew: Crew) -> None:
        """From now on this crew works on that loop."""
        self._crews[loop] = crew
        self._latest = (loop, crew)

    def detach(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on nobody does."""
        self._crews.pop(loop, None)
        self._latest = (None, None)


@runtime_checkable
class Source(Protocol):
    """Whatever can be given as `backend=`: a provider, a `Coordination`, or a `Backend`."""

    @property
    def backend(self) -> Backend:
        """Where states are kept."""
        ...


def check_source(given: Source | None) -> Source | None:
    """Return what was given as `backend=`, or raise `SettingsValidationError` if it is nothing of that kind."""
    # Not `isinstance`, which costs more for a protocol than making the whole lock.
    if given is None or hasattr(given, "backend"):
        return given
    raise SettingsValidationError(
        f"backend= takes a provider, a Coordination, or what provider.lock() returned, and no {type(given).__name__}: "
        "provider_from_url() makes a provider of a URL"
    )


def crew_of(source: Source | None) -> Crew:
    """The running loop's crew for that source, or for the one app that is open on this loop."""
    if source is not None:
        return source.backend.crew()
    coordination = context.current().coordination
    if not isinstance(coordination, Source):
        raise NotRunningError(
            "the open app has no Coordination: add a provider to Grelmicro(uses=[...]), or pass backend="
        )
    return coordination.backend.crew()
