"""Several errands on one connection: each gets its own answers, whatever happens to the others."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Connection

from grelmicro_fastapi.providers.redis_pipe import Errand, Pipe
from grelmicro_fastapi.providers.redis_protocol import pack
from tests.faultproxy import Fault, FaultProxy, fault_proxy
from tests.servers.redis import Server

pytestmark = pytest.mark.anyio


class Got:
    """What became of errands, in the order in which it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[Any] | Exception]] = []
        self.news = asyncio.Event()

    def of(self, name: str, pipe: Pipe, *words: str) -> Errand:
        """Ask the server to repeat these words, in one errand."""

        def landed(got: list[Any] | Exception) -> None:
            self.told.append((name, got))
            self.news.set()

        return pipe.send(b"".join([pack(("ECHO", word)) for word in words]), len(words), landed)

    async def all(self, count: int) -> list[tuple[str, list[Any] | Exception]]:
        async with asyncio.timeout(20):
            while len(self.told) < count:
                self.news.clear()
                await self.news.wait()
        return self.told


@asynccontextmanager
async def piped(port: int) -> AsyncGenerator[tuple[Pipe, list[object]]]:
    connection, abandoned = Connection(host="127.0.0.1", port=port), list[object]()
    await connection.connect()
    try:
        yield Pipe(connection, abandoned.append), abandoned
    finally:
        await connection.disconnect(nowait=True)


@pytest.fixture
async def proxy(valkey_server: Server) -> AsyncIterator[FaultProxy]:
    async with fault_proxy(valkey_server.port) as proxy:
        yield proxy


async def test_each_errand_gets_its_own_answers_in_order(valkey_server: Server) -> None:
    got = Got()
    async with piped(valkey_server.port) as (pipe, _):
        got.of("first", pipe, "a", "b")
        got.of("second", pipe, "c")
        assert pipe.busy
        assert await got.all(2) == [("first", [b"a", b"b"]), ("second", [b"c"])]
        assert pipe.sound
        assert not pipe.busy


async def test_an_errand_may_start_while_the_answers_to_another_are_told(valkey_server: Server) -> None:
    got = Got()
    async with piped(valkey_server.port) as (pipe, _):
        pipe.send(pack(("ECHO", "a")), 1, lambda _: got.of("third", pipe, "c"))
        got.of("second", pipe, "b")
        assert await got.all(2) == [("second", [b"b"]), ("third", [b"c"])]


async def test_a_connection_that_breaks_in_the_middle_ends_all_errands_that_are_not_answered(
    proxy: FaultProxy,
) -> None:
    got = Got()
    async with piped(proxy.port) as (pipe, abandoned):
        # The answer to the first arrives, and half of the one to the second.
        proxy.down = Fault(cut_after=len(b"$1\r\na\r\n") + 5)
        for name, word in (("first", "a"), ("second", "b"), ("third", "c")):
            got.of(name, pipe, word)
        (first, second, third) = await got.all(3)
        assert first == ("first", [b"a"])
        assert isinstance(second[1], OSError)
        assert isinstance(third[1], OSError)
        assert not pipe.sound
        assert not abandoned  # it was not we who hung up


async def test_who_gives_an_errand_up_hears_no_more_of_it_and_those_behind_hear_that_it_broke(
    proxy: FaultProxy,
) -> None:
    got = Got()
    async with piped(proxy.port) as (pipe, abandoned):
        proxy.up = Fault(drop=True)
        first = got.of("first", pipe, "a")
        got.of("second", pipe, "b")
        first.abandon()
        first.abandon()
        ((name, why),) = await got.all(1)
        assert name == "second"
        assert isinstance(why, OSError)
        assert abandoned == [pipe.connection]
        assert not pipe.sound


async def test_an_answer_that_nobody_asked_for_makes_a_connection_unfit(valkey_server: Server) -> None:
    got = Got()
    async with piped(valkey_server.port) as (pipe, _):
        # The second answer belongs to nobody, and would be taken for that to the next question.
        pipe.send(pack(("ECHO", "a")) + pack(("ECHO", "b")), 1, lambda answer: got.told.append(("only", answer)))
        # Another connection's turn comes after ours has been answered, and what it sent arrived.
        async with piped(valkey_server.port) as (other, _):
            got.of("other", other, "c")
            await got.all(2)
        assert got.told[0] == ("only", [b"a"])
        assert not pipe.sound
