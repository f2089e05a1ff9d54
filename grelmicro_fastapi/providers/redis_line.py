"""A connection that hears what is published, and notices when it has gone deaf."""

import asyncio
from collections.abc import Callable
from typing import Any, Self

from grelmicro_fastapi.coordination.futures import settle
from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers.redis_driver import Connection
from grelmicro_fastapi.providers.redis_node import Node, unreachable
from grelmicro_fastapi.providers.redis_pipe import transport_of
from grelmicro_fastapi.providers.redis_protocol import MORE, ServerError, pack, reader

QUIET = 10.0
"""After so many seconds of silence the server is asked whether it is still there."""

Told = Callable[[str, bytes, Any], object]
"""Gets the kind, the channel and the content of what was heard."""


class DeafError(BackendError):
    """The server refuses the subscription. `code` is the first word of its answer, such as NOPERM or plain ERR."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Line:
    """One such connection. `told` gets everything that is heard, in the step in which it arrives."""

    def __init__(self, node: Node, told: Told, quiet: float = QUIET) -> None:
        self._node = node
        self._told = told
        self._quiet = quiet
        self._connection: Connection | None = None
        self._ear: _Ear | None = None

    async def __aenter__(self) -> Self:
        self._connection = await self._node.lend()
        self._ear = _Ear(self._connection, self._told)
        return self

    async def __aexit__(self, *_: object) -> None:
        connection, self._connection, self._ear = self._connection, None, None
        if connection:
            await self._node.take_back(connection)

    def say(self, *words: str) -> None:
        """Send a command, such as SUBSCRIBE; what comes of it is among what is heard. Raises `BackendError`."""
        if self._ear is None or self._ear.ended.done():
            raise BackendError("this line is closed")
        self._ear.transport.write(pack(words))

    async def stay(self) -> None:
        """Return never. Raises `BackendError` when the line is lost, or is silent even when the server is asked."""
        ear, loop, asked = self._ear, asyncio.get_running_loop(), False
        while ear and not ear.ended.done():
            since = ear.last
            patience = self._node.connecting if asked else self._quiet
            await asyncio.wait([ear.ended], timeout=max(0.0, since + patience - loop.time()))
            if ear.last > since:
                asked = False
            elif asked:
                break
            elif not ear.ended.done():
                self.say("PING")
                ear.last, asked = loop.time(), True
        end = ear.ended.result() if ear and ear.ended.done() else TimeoutError("it is silent")
        if isinstance(end, ServerError):
            raise DeafError(f"the server refuses the subscription: {end}", self._node.driver.code(end)) from end
        raise unreachable(end, sent=True) from end


class _Ear(asyncio.Protocol):
    """Takes over the transport of a connection, and reads it."""

    def __init__(self, connection: Connection, told: Told) -> None:
        loop = asyncio.get_running_loop()
        self.transport = transport_of(connection)
        self.last = loop.time()
        """When something was heard."""
        self.ended: asyncio.Future[Exception] = loop.create_future()
        self._loop = loop
        self._told = told
        self._reader = reader()
        self._library = self.transport.get_protocol()
        self.transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        """Some of what is said, in pieces of any size."""
        self.last = self._loop.time()
        self._reader.feed(data)
        try:
            while (heard := self._reader.gets()) is not MORE:
                if isinstance(heard, ServerError):
                    settle(self.ended, heard)
                elif not isinstance(heard, bytes) and heard[0] != b"pong":
                    # The answer to a PING has another form while nothing is subscribed.
                    self._told(heard[0].decode(), heard[1], heard[2])
        except OSError as error:
            settle(self.ended, error)

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side hung up, or we did."""
        settle(self.ended, exc or ConnectionResetError("the server closed the connection"))
        self._library.connection_lost(exc)
