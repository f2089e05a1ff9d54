"""One server, and our connections to it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from grelmicro_fastapi.errors import BackendError, SettingsValidationError
from grelmicro_fastapi.providers.redis_driver import Connection, Driver
from grelmicro_fastapi.providers.redis_pipe import Errand, Landed, Pipe, hang_up
from grelmicro_fastapi.providers.redis_protocol import Word, pack
from grelmicro_fastapi.providers.redis_wire import SCRIPT, SHA

Dial = Callable[[], Awaitable[Connection]]


class Node:
    """One server: the connections to it that are idle, and how to make another.

    `dial` makes one that is not connected; it may have to find out first where to. What a script wrote counts only
    when so many `replicas` have it.
    """

    def __init__(self, driver: Driver, dial: Dial, connecting: float, operation: float, replicas: int = 0) -> None:
        self.driver = driver
        self._replicas = replicas
        self._dial = dial
        self.connecting = connecting
        self.operation = operation
        self._idle: list[Pipe] = []
        self._lent: list[Connection] = []
        self._broken: list[Connection] = []
        self._closed = False

    async def lend(self) -> Connection:
        """A connection for somebody else to use. It is hung up should this server lose its office.

        Raises `BackendError`.
        """
        connection = await self._open()
        self._lent.append(connection)
        return connection

    async def take_back(self, connection: Connection) -> None:
        """Hang it up."""
        if connection in self._lent:
            self._lent.remove(connection)
        await hang_up(connection)

    async def exchange(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Send commands in one write and return the answers; an error that the server answered with is one of them.

        Raises `BackendError` if any answer is missing. A connection of which an answer is still due is hung up, so
        cancelling this leaves none behind that would give the next caller somebody else's answer.
        """
        if not commands:
            return []
        pipe = await self._take()
        try:
            questions = b"".join([pack(tuple(command)) for command in commands])
            answers = await pipe.exchange(questions, len(commands), self.operation)
        except BaseException as error:
            await hang_up(pipe.connection)
            if isinstance(error, self.driver.lost):
                raise unreachable(error, sent=True) from error
            raise
        demoted = any(self._is(answer, "READONLY") for answer in answers)
        if demoted:
            # Another server took over: nothing is written here, and nothing worth hearing is said here any more.
            for each in (pipe.connection, *(idle.connection for idle in self._idle), *self._lent):
                await hang_up(each)
            self._idle.clear()
        elif self._closed or not pipe.sound:
            await hang_up(pipe.connection)
        else:
            self._idle.append(pipe)
        return answers

    def send(self, questions: bytes, count: int, landed: Landed, behind: Errand | None = None) -> Errand | None:
        """Send at once so many packed commands, over a connection that is ready; None if none is, and nothing was sent.

        `landed` is called once with the answers, or with the `BackendError` that says why they are missing. What goes
        `behind` an errand goes over the same connection, if answers to that one are still due.
        """
        if self._closed or self._replicas:
            return None
        if behind:
            pipe = behind.pipe
            ready = behind.landed is not None and pipe.sound
            return pipe.send(questions, count, partial(self._back, pipe, landed)) if ready else None
        while self._idle:
            pipe = self._idle.pop()
            if pipe.sound:
                return pipe.send(questions, count, partial(self._back, pipe, landed))
            pipe.abandon()
        return None

    def _back(self, pipe: Pipe, landed: Landed, got: list[Any] | Exception) -> None:
        if isinstance(got, Exception):
            pipe.abandon()
            landed(unreachable(got, sent=True))
            return
        if self._closed or any(self._is(answer, "READONLY") for answer in got):
            # What follows is answered still, and nothing else.
            pipe.sound = False
        if not pipe.busy:
            self._put_back(pipe)
        landed(got)

    def _put_back(self, pipe: Pipe) -> None:
        if pipe.sound:
            self._idle.append(pipe)
        else:
            pipe.abandon()

    async def _tidy(self) -> None:
        while self._broken:
            await hang_up(self._broken.pop())

    async def run(self, calls: Sequence[Sequence[Word]], before: Sequence[Word] = ()) -> list[Any]:
        """Run the script with each of these arguments, after the command `before` each time if there is one.

        A server that does not know the script is sent it. Raises `BackendError` if any answer is missing.
        """
        answers = await self._run([("EVALSHA", SHA, *call) for call in calls], before)
        unknown = [place for place, answer in enumerate(answers) if self._is(answer, "NOSCRIPT")]
        if unknown:
            # The first brings the script along, the others find it.
            again: list[tuple[Word, ...]] = [("EVALSHA", SHA, *calls[place]) for place in unknown]
            again[0] = ("EVAL", SCRIPT, *calls[unknown[0]])
            for place, answer in zip(unknown, await self._run(again, before), strict=True):
                answers[place] = answer
        return answers

    async def close(self) -> None:
        """Hang up."""
        self._closed = True
        await self._tidy()
        idle, self._idle = self._idle, []
        for pipe in idle:
            await hang_up(pipe.connection)

    def reopen(self) -> None:
        """Keep connections again."""
        self._closed = False

    async def _run(self, commands: Sequence[Sequence[Word]], before: Sequence[Word]) -> list[Any]:
        said = [word for command in commands for word in (before, command)] if before else [*commands]
        if self._replicas:
            said.append(("WAIT", self._replicas, int(self.operation * 500)))
        answers = await self.exchange(said)
        taken = answers.pop() if self._replicas else 0
        if before:
            answers = answers[1::2]
        if isinstance(taken, Exception):
            raise BackendError(f"the server cannot wait for replicas, so use replicas=0: {taken}")
        if taken < self._replicas:
            shy = BackendError(f"{taken} of {self._replicas} replicas took it in time")
            answers = [answer if isinstance(answer, Exception) else shy for answer in answers]
        return answers

    async def _take(self) -> Pipe:
        while self._idle:
            pipe = self._idle.pop()
            if pipe.sound:
                return pipe
            await hang_up(pipe.connection)
        # What the library keeps of a connection that we abandon is given back where we may wait for that.
        return Pipe(await self._open(), self._broken.append)

    async def _open(self) -> Connection:
        await self._tidy()
        connection: Connection | None = None
        try:
            async with asyncio.timeout(self.connecting):
                connection = await self._dial()
                await connection.connect()
        except BaseException as error:
            if connection:
                await hang_up(connection)
            if isinstance(error, self.driver.lost):
                raise unreachable(error, sent=False) from error
            if isinstance(error, TypeError) and connection is None:
                # Not where it is caught: what the library raises may hold the URL.
                raise SettingsValidationError("the URL has an option that the driver does not know") from None
            raise
        return connection

    def _is(self, answer: object, code: str) -> bool:
        return isinstance(answer, Exception) and self.driver.code(answer) == code


def unreachable(error: BaseException, *, sent: bool) -> BackendError:
    """The error for a server that gave no answer."""
    problem = BackendError(f"the server gave no answer: {str(error) or type(error).__name__}")
    problem.sent = sent
    return problem
