"""How an app leaves: what it does at once, and what it still waits for."""

import asyncio
import logging
from typing import Final

from grelmicro_fastapi.app.runtime import Opened
from grelmicro_fastapi.coordination.backend import Backend
from grelmicro_fastapi.coordination.crew import Crew
from grelmicro_fastapi.errors import BackendError

_TIDYING: Final = 5.0
"""Seconds for what is under way, and for burying what is dead, at the end. Leases end without it."""
_log = logging.getLogger("grelmicro_fastapi.app")


def told_to_stop(opened: Opened) -> None:
    """The server was told to stop: be not ready, resign, and send the waiting away. Held guards go on."""
    if opened.runtime.draining:
        return
    opened.runtime.draining = True
    _log.info("told to stop: leaders resign, and whoever waits is sent away")
    for crew in opened.crews.values():
        crew.drain()


def ends(opened: Opened) -> None:
    """The lifespan ends: the same, but for stores that somebody else goes on using on this loop."""
    opened.runtime.draining = True
    for crew in _our_own(opened):
        crew.drain()


def parts_close(opened: Opened) -> None:
    """Requests are over. What the app's parts do to close is its own work, and may use locks."""
    for crew in _our_own(opened):
        crew.draining = False


def _our_own(opened: Opened) -> list[Crew]:
    return [crew for crew in opened.crews.values() if crew.users <= opened.opens[crew]]


async def released(crew: Crew, patience: float) -> None:
    """Give requests that are still running, or being cancelled, the time to release what they hold."""
    if not await crew.idle(patience):
        _log.warning("guards are still held after %g s: their leases end by themselves", patience)


async def vacated(backend: Backend, crew: Crew) -> None:
    """Bury what is dead in a store that is about to be closed, when what was given up has arrived there."""
    try:
        await crew.courier.rest(_TIDYING)
        async with asyncio.timeout(_TIDYING):
            await crew.store.vacate()
    except (BackendError, TimeoutError) as trouble:
        _log.warning("the %s store was not tidied up, which does no harm: %s", backend.name, trouble)
