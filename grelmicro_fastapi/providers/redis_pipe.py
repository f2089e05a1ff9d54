"""Questions out, answers in, on a connection that the library has made ready.

Its own reading and writing costs more than all the rest of an uncontended lock.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from grelmicro_fastapi.coordination.futures import settle
from grelmicro_fastapi.providers.redis_driver import Connection
from grelmicro_fastapi.providers.redis_protocol import MORE, reader

Landed = Callable[[list[Any] | Exception], object]
"""Gets the answers, or why there are none."""


class Pipe(asyncio.Protocol):
    """Takes over the transport of a connection. One exchange at a time."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._transport = transport_of(connection)
        self._library = self._transport.get_protocol()
        self._answers: list[Any] = []
        self._expected = 0
        self._reader = reader()
        self._landed: Landed | None = None
        self.clean = not self._transport.is_closing()
        """False once it is lost, or an answer is due that nobody waits for."""
        self._transport.set_protocol(self)

    def send(self, questions: bytes, count: int, landed: Landed) -> None:
        """Send without waiting. `landed` is called once with so many answers, or with why there are none."""
        self.clean = False
        self._answers, self._expected = [], count
        self._landed = landed
        self._transport.write(questions)

    async def exchange(self, questions: bytes, count: int, seconds: float) -> list[Any]:
        """Send, and return so many answers; an error of the server is one of them.

        Raises `OSError` if the connection is lost, `TimeoutError` after so many seconds.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[Any] | Exception] = loop.create_future()
        timer = loop.call_later(seconds, self._end, TimeoutError("it took too long"))
        try:
            self.send(questions, count, partial(settle, done))
            got = await done
        finally:
            timer.cancel()
            self._landed = None
        if isinstance(got, Exception):
            raise got
        return got

    def abandon(self) -> None:
        """Nobody waits for the answers any more, so nobody can use this connection any more."""
        self._landed = None
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Part of an answer, or several."""
        if self._landed is None:
            self.clean = False
            return
        self._reader.feed(data)
        try:
            while len(self._answers) < self._expected:
                answer = self._reader.gets()
                if answer is MORE:
                    return
                self._answers.append(answer)
        except OSError as error:
            self._end(error)
            return
        self.clean = not self._reader.has_data()
        self._end(self._answers)

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side hung up, or we did."""
        self.clean = False
        self._end(exc or ConnectionResetError("the server closed the connection"))
        self._library.connection_lost(exc)

    def _end(self, got: list[Any] | Exception) -> None:
        landed, self._landed = self._landed, None
        if landed:
            landed(got)


def transport_of(connection: Connection) -> asyncio.Transport:
    """What a connection reads from and writes to."""
    # Private to both libraries, and the same in all of their versions since there is asyncio in them.
    writer: asyncio.StreamWriter = getattr(connection, "_writer")  # noqa: B009  # hidden from type checkers
    return cast("asyncio.Transport", writer.transport)
