"""The same token over bare connections, one for each waiter: asyncio streams and hiredis, no client library."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import hiredis

from bench.contenders import Contender, Give, Take


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer, self._parser = reader, writer, hiredis.Reader()

    async def ask(self, *words: str) -> object:
        self._writer.write(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w.encode()) for w in words))
        while (answer := self._parser.gets()) is False:
            self._parser.feed(await self._reader.read(65_536))
        return answer

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Contender]:
    where = urlsplit(url)
    everybody: list[_Connection] = []
    idle: list[_Connection] = []

    async def borrow() -> _Connection:
        if idle:
            return idle.pop()
        everybody.append(_Connection(*await asyncio.open_connection(where.hostname, where.port)))
        return everybody[-1]

    async def make(name: str) -> None:
        idle.append(connection := await borrow())
        await connection.ask("RPUSH", name, "token")

    def lock(_: str, name: str) -> Take:
        async def take() -> Give:
            connection = await borrow()

            async def give() -> None:
                await connection.ask("RPUSH", name, "token")
                idle.append(connection)

            await connection.ask("BLPOP", name, "0")
            return give

        return take

    try:
        yield Contender(lock, make)
    finally:
        for connection in everybody:
            connection.close()
