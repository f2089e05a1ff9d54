"""Questions out, answers in, on a connection that the library has made ready.

Its own reading and writing costs more than all the rest of an uncontended lock.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast

from grelmicro_fastapi.coordination.futures import settle
from grelmicro_fastapi.providers.redis_driver import Connection
from grelmicro_fastapi.providers.redis_protocol import MORE, reader

Landed = Callable[[list[Any] | Exception], object]
"""Gets the answers, or why there are none."""


class Errand:
    """Questions that were sent together, and what has been answered so far."""

    __slots__ = ("answers", "count", "landed", "pipe")

    def __init__(self, pipe: "Pipe", count: int, landed: Landed) -> None:
        self.pipe = pipe
        self.count = count
        self.landed: Landed | None = landed
        self.answers: list[Any] = []

    def end(self, got: list[Any] | Exception) -> None:
        """Tell whoever waits, once."""
        landed, self.landed = self.landed, None
        if landed:
            landed(got)

    def abandon(self) -> None:
        """Nobody waits for the answers any more, so nobody can use this connection any more."""
        self.landed = None
        self.pipe.abandon()


class Pipe(asyncio.Protocol):
    """Takes over the transport of a connection. Answers come in the order of the questions.

    `abandoned` is called once if we hang up, which the library that made the connection does not know of.
    """

    def __init__(self, connection: Connection, abandoned: Callable[[Connection], object]) -> None:
        self.connection = connection
        self._abandoned: Callable[[Connection], object] | None = abandoned
        self._transport = transport_of(connection)
        self._library = self._transport.get_protocol()
        self._reader = reader()
        self._due: deque[Errand] = deque()
        self.sound = not self._transport.is_closing()
        """False once it is lost, or something was said that nobody had asked for: then nothing more may be sent."""
        self._transport.set_protocol(self)

    @property
    def busy(self) -> bool:
        """Are answers due?"""
        return bool(self._due)

    def send(self, questions: bytes, count: int, landed: Landed) -> Errand:
        """Send without waiting. `landed` is called once with so many answers, or with why there are none."""
        errand = Errand(self, count, landed)
        self._due.append(errand)
        self._transport.write(questions)
        return errand

    async def exchange(self, questions: bytes, count: int, seconds: float) -> list[Any]:
        """Send, and return so many answers; an error of the server is one of them.

        Raises `OSError` if the connection is lost, `TimeoutError` after so many seconds.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[Any] | Exception] = loop.create_future()
        errand = self.send(questions, count, partial(settle, done))
        timer = loop.call_later(seconds, errand.end, TimeoutError("it took too long"))
        try:
            got = await done
        finally:
            timer.cancel()
            errand.landed = None
        if isinstance(got, Exception):
            raise got
        return got

    def abandon(self) -> None:
        """Hang up at once. Whoever waits for an answer is told so a moment later."""
        self.sound = False
        self._transport.abort()
        abandoned, self._abandoned = self._abandoned, None
        if abandoned:
            abandoned(self.connection)

    def data_received(self, data: bytes) -> None:
        """Part of an answer, or several."""
        if not self._due:
            self.sound = False
            return
        self._reader.feed(data)
        while self._due and self._complete(self._due[0]):
            errand = self._due.popleft()
            if not self._due and self._reader.has_data():
                self.sound = False
            errand.end(errand.answers)

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side hung up, or we did."""
        self._lost(exc or ConnectionResetError("the connection was closed"))
        self._library.connection_lost(exc)

    def _complete(self, errand: Errand) -> bool:
        answers = errand.answers
        try:
            while len(answers) < errand.count:
                answer = self._reader.gets()
                if answer is MORE:
                    return False
                answers.append(answer)
        except OSError as error:
            self._lost(error)
            return False
        return True

    def _lost(self, error: Exception) -> None:
        self.sound = False
        due, self._due = self._due, deque()
        for errand in due:
            errand.end(error)


def transport_of(connection: Connection) -> asyncio.Transport:
    """What a connection reads from and writes to, once it is connected."""
    writer = _writer_of(connection)
    assert writer, "it is connected"
    return cast("asyncio.Transport", writer.transport)


async def hang_up(connection: Connection) -> None:
    """Close without waiting for anything, if it is connected at all."""
    if writer := _writer_of(connection):
        # Under TLS a close would wait for the server's farewell, in a socket that nobody looks after any more.
        writer.transport.abort()
    with suppress(OSError, TimeoutError):
        await connection.disconnect(nowait=True)


def _writer_of(connection: Connection) -> asyncio.StreamWriter | None:
    # Private to both libraries, and the same in all of their versions since there is asyncio in them.
    writer: asyncio.StreamWriter | None = getattr(connection, "_writer")  # noqa: B009  # hidden from type checkers
    return writer
