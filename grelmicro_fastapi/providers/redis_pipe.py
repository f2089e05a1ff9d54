"""Questions out, answers in, on a connection that the library has made ready.

Its own reading and writing costs more than all the rest of an uncontended lock.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from grelmicro_fastapi.coordination.futures import settle
from grelmicro_fastapi.providers.redis_driver import Connection

Landed = Callable[[list[Any] | Exception], object]
"""Gets the answers, or why there are none."""

_INTEGER, _BULK, _ARRAY, _SIMPLE, _ERROR = b":$*+-"


class ServerError(Exception):
    """What the server answered instead of a value. Its text begins with a code, such as NOSCRIPT."""


class IncompleteError(Exception):
    """The rest of a value is still on its way."""


class Pipe(asyncio.Protocol):
    """Takes over the transport of a connection. One exchange at a time."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._transport = transport_of(connection)
        self._library = self._transport.get_protocol()
        self._answers: list[Any] = []
        self._expected = 0
        self._rest = b""
        self._landed: Landed | None = None
        self.clean = not self._transport.is_closing()
        """False once it is lost, or an answer is due that nobody waits for."""
        self._transport.set_protocol(self)

    def send(self, questions: bytes, count: int, landed: Landed) -> None:
        """Send without waiting. `landed` is called once with so many answers, or with why there are none."""
        self.clean = False
        self._answers, self._expected, self._rest = [], count, b""
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
        known, at = self._rest + data, 0
        try:
            while len(self._answers) < self._expected:
                answer, at = parse(known, at)
                self._answers.append(answer)
        except IncompleteError:
            self._rest = known[at:]
            return
        except (OSError, ValueError) as error:
            self._end(OSError(str(error)))
            return
        self.clean = at == len(known)
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


def parse(data: bytes, at: int) -> tuple[Any, int]:
    """The value that begins there, and where the next one does.

    Raises `IncompleteError`; `OSError` or `ValueError` if this is not the protocol.
    """
    end = data.find(b"\r\n", at)
    if end < 0:
        raise IncompleteError
    kind, line, after = data[at], data[at + 1 : end], end + 2
    if kind == _INTEGER:
        return int(line), after
    if kind == _BULK:
        end = after + int(line)
        if end < after:
            return None, after
        if len(data) < end + 2:
            raise IncompleteError
        return data[after:end], end + 2
    if kind == _ARRAY:
        values: list[Any] = []
        for _ in range(int(line)):
            value, after = parse(data, after)
            values.append(value)
        return values, after
    if kind == _SIMPLE:
        return line, after
    if kind == _ERROR:
        return ServerError(line.decode(errors="replace")), after
    raise OSError("this is not a server that speaks Redis's protocol")
