"""A connection that hears what is published, and notices when it has gone deaf."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Self

from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers.redis_driver import REFUSALS, Connection
from grelmicro_fastapi.providers.redis_node import Node, unreachable
from grelmicro_fastapi.providers.redis_wire import pack

QUIET = 10.0
"""After so many seconds of silence the server is asked whether it is still there."""


class DeafError(BackendError):
    """The server refuses the subscription. `code` is the first word of its answer."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Line:
    """One such connection. Raises `BackendError` when it is lost."""

    def __init__(self, node: Node, quiet: float = QUIET) -> None:
        self._node = node
        self._quiet = quiet
        self._connection: Connection | None = None

    async def __aenter__(self) -> Self:
        self._connection = await self._node.lend()
        return self

    async def __aexit__(self, *_: object) -> None:
        connection, self._connection = self._connection, None
        if connection:
            await self._node.take_back(connection)

    async def say(self, *words: str) -> None:
        """Send a command, such as SUBSCRIBE; what comes of it is among what is heard."""
        connection = self._open()
        try:
            async with asyncio.timeout(self._node.connecting):
                await connection.send_packed_command([pack([words])], check_health=False)
        except self._node.driver.lost as error:
            raise unreachable(error, sent=True) from error

    async def heard(self) -> AsyncIterator[tuple[str, bytes, Any]]:
        """Kind, channel and content of everything that comes."""
        asked = False
        while True:
            try:
                async with asyncio.timeout(self._node.connecting if asked else self._quiet):
                    kind, channel, *content = await self._read()
            except TimeoutError as silence:
                # The connection may be half open.
                if asked or not self._open().is_connected:
                    raise unreachable(silence, sent=True) from silence
                await self.say("PING")
                asked = True
                continue
            except self._node.driver.lost as error:
                code = self._node.driver.code(error)
                if isinstance(error, self._node.driver.answers) or code in REFUSALS:
                    raise DeafError(f"the server refuses the subscription: {error}", code) from error
                raise unreachable(error, sent=True) from error
            asked = False
            if kind != b"pong":
                yield kind.decode(), channel, content[0]

    async def _read(self) -> list[Any]:
        # A read that our timeout ends loses nothing.
        heard: list[Any] = await self._open().read_response(disable_decoding=True, disconnect_on_error=False)
        return heard

    def _open(self) -> Connection:
        if self._connection is None:
            raise BackendError("this line is closed")
        return self._connection
