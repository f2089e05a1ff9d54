"""Wakes from PostgreSQL: LISTEN on a connection of its own, to one channel for each store."""

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable

from grelmicro_fastapi.coordination.store import Woken
from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers.postgres_connections import Connections, Link
from grelmicro_fastapi.providers.postgres_errors import ERRORS
from grelmicro_fastapi.providers.postgres_wire import wake

PING = 5.0
"""Seconds between two signs of life: a connection that is half open is silent for ever."""
_PATIENCE = 5.0
_HEARING = 1.0
_log = logging.getLogger("grelmicro_fastapi.providers")


class DeafError(BackendError):
    """LISTEN succeeded, and hears nothing: there is a pooler in between."""


class Ear:
    """Listens for one store, and reconnects by itself."""

    def __init__(
        self, channel: str, connections: Connections, shout: Callable[[str, str], Awaitable[object]], ping: float
    ) -> None:
        self._channel = f"grelmicro_{channel}"
        self._connections = connections
        self._shout = shout
        """Sends a notification on another connection."""
        self._ping = ping

    async def listen(self, woken: Woken) -> None:
        """Report wakes until cancelled. Raises `BackendError` if none can ever be heard."""
        pause = 0.05
        while True:
            started = asyncio.get_running_loop().time()
            try:
                async with self._connections.listening() as link:
                    await self._hear(link, woken)
            except DeafError:
                raise
            except (*ERRORS, BackendError) as error:
                if isinstance(error, BackendError) and error.sent:
                    raise
                _log.debug("listening again after %s", type(error).__name__)
            if asyncio.get_running_loop().time() - started > _PATIENCE:
                pause = 0.05
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(2 * pause, 2.0)

    async def _hear(self, link: Link, woken: Woken) -> None:
        gone = asyncio.Event()
        heard: asyncio.Queue[str] = asyncio.Queue()

        def told(_link: object, _pid: object, _channel: object, payload: object) -> None:
            message = str(payload)
            if message.startswith("["):
                woken(wake(message))
            else:
                heard.put_nowait(message)

        def ended(_link: object) -> None:
            gone.set()

        link.add_termination_listener(ended)
        async with asyncio.timeout(_PATIENCE):
            await link.add_listener(self._channel, told)
        try:
            await self._test(heard)
            # Until now nobody listened: what was said meanwhile is lost.
            woken(None)
            while not gone.is_set():
                try:
                    async with asyncio.timeout(self._ping):
                        await gone.wait()
                except TimeoutError:
                    async with asyncio.timeout(self._ping):
                        await link.execute("select 1")
        except TimeoutError:
            # Half open. A polite end would wait for an answer too.
            link.terminate()
            raise
        finally:
            if not link.is_closed():
                link.remove_termination_listener(ended)
                async with asyncio.timeout(_HEARING):
                    await link.remove_listener(self._channel, told)

    async def _test(self, heard: "asyncio.Queue[str]") -> None:
        """Notify ourselves from another connection: behind a transaction pooler LISTEN succeeds, and hears nothing."""
        for _ in range(2):
            word = secrets.token_hex(8)
            await self._shout(self._channel, word)
            try:
                async with asyncio.timeout(_HEARING):
                    while await heard.get() != word:
                        pass
            except TimeoutError:
                continue
            return
        raise DeafError("a pooler swallows LISTEN: pass listen_url= with an address that leads to PostgreSQL itself")
