"""Bytes and values: whatever reads and writes the protocol, hiredis or Python, does it alike."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import hiredis
import pytest

from grelmicro_fastapi.providers import redis_protocol
from grelmicro_fastapi.providers.redis_protocol import MORE, PlainReader, Reader, ServerError, plainly_packed
from tests.servers.redis import Server

readers = pytest.mark.parametrize("make", [PlainReader, redis_protocol.reader], ids=["plain", "hiredis"])

VALUES: list[tuple[bytes, Any]] = [
    (b":0\r\n", 0),
    (b":-12\r\n", -12),
    (b":9007199254740993\r\n", 9_007_199_254_740_993),
    (b"$-1\r\n", None),
    (b"*-1\r\n", None),
    (b"$0\r\n\r\n", b""),
    (b"$7\r\na\r\nb\r\n*\r\n", b"a\r\nb\r\n*"),
    (b"$2\r\n\xff\xfe\r\n", b"\xff\xfe"),
    (b"*0\r\n", []),
    (b"*3\r\n$1\r\na\r\n*2\r\n:1\r\n$-1\r\n:3\r\n", [b"a", [1, None], 3]),
    (b"*2\r\n:0\r\n*7\r\n:2\r\n:41\r\n:0\r\n:0\r\n:1\r\n$3\r\nx/w\r\n:250\r\n", [0, [2, 41, 0, 0, 1, b"x/w", 250]]),
    (b"+OK\r\n", b"OK"),
]
WHOLE = b"".join(sent for sent, _ in VALUES)
MEANT = [meant for _, meant in VALUES]


def told(reader: Reader) -> Iterator[Any]:
    while (value := reader.gets()) is not MORE:
        yield value


def test_hiredis_is_used_where_it_is_installed() -> None:
    assert isinstance(redis_protocol.reader(), hiredis.Reader)
    assert redis_protocol.pack is hiredis.pack_command


@readers
def test_values_are_read_in_pieces_of_any_size(make: Callable[[], Reader]) -> None:
    for cut in range(len(WHOLE) + 1):
        reader = make()
        reader.feed(WHOLE[:cut])
        before = list(told(reader))
        reader.feed(WHOLE[cut:])
        assert before + list(told(reader)) == MEANT, cut
    reader = make()
    byte_by_byte = list[Any]()
    for at in range(len(WHOLE)):
        reader.feed(WHOLE[at : at + 1])
        byte_by_byte += told(reader)
    assert byte_by_byte == MEANT


@readers
def test_an_error_of_the_server_is_a_value_wherever_it_stands(make: Callable[[], Reader]) -> None:
    reader = make()
    reader.feed(b"-NOSCRIPT none such\r\n*2\r\n:1\r\n-ERR b\xffd\r\n:2\r\n")
    alone, (one, within), after = told(reader)
    assert isinstance(alone, ServerError)
    assert str(alone) == "NOSCRIPT none such"
    assert isinstance(within, ServerError)
    assert str(within) == "ERR b\ufffdd"
    assert (one, after) == (1, 2)


@readers
def test_what_stands_behind_the_last_value_is_seen(make: Callable[[], Reader]) -> None:
    reader = make()
    reader.feed(b":1\r\n:2\r\n:")
    assert reader.gets() == 1
    assert reader.has_data()
    assert reader.gets() == 2
    assert reader.has_data()
    assert reader.gets() is MORE
    reader.feed(b"3\r\n")
    assert reader.gets() == 3
    assert not reader.has_data()


@readers
@pytest.mark.parametrize("nonsense", [b"HTTP/1.1 400 Bad Request\r\n", b":one\r\n", b"*2\r\n:1\r\n?\r\n"])
def test_another_protocol_is_refused(make: Callable[[], Reader], nonsense: bytes) -> None:
    reader = make()
    reader.feed(nonsense)
    with pytest.raises(OSError, match=r"."):
        list(told(reader))


@pytest.mark.parametrize("pack", [plainly_packed, redis_protocol.pack], ids=["plain", "hiredis"])
def test_a_command_is_packed_by_bytes_not_by_letters(pack: Callable[[tuple[redis_protocol.Word, ...]], bytes]) -> None:
    words = ("SET", "clé", b"\x00\r\n", 1_764_560_000_000, -1, "")
    sent = b"*6\r\n$3\r\nSET\r\n$4\r\ncl\xc3\xa9\r\n$3\r\n\x00\r\n\r\n$13\r\n1764560000000\r\n$2\r\n-1\r\n$0\r\n\r\n"
    assert pack(words) == sent


PAIR_WITHOUT_HIREDIS = """
import asyncio, sys
sys.modules["hiredis"] = None
from grelmicro_fastapi.coordination import Lock
from grelmicro_fastapi.providers import redis_protocol
from grelmicro_fastapi.providers.redis import RedisProvider

async def main(url):
    async with RedisProvider(url) as provider:
        lock = Lock("without hiredis", backend=provider)
        async with lock as first:
            before = first.fencing_token
            waiting = asyncio.create_task(lock.acquire(timeout=30))
            await asyncio.sleep(0)
        second = await waiting
        print(second.fencing_token - before, redis_protocol.reader.__name__)
        await second.release()

asyncio.run(main(sys.argv[1]))
"""


def test_locks_work_without_hiredis(valkey_server: Server) -> None:
    command = [sys.executable, "-c", PAIR_WITHOUT_HIREDIS, valkey_server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["1", "PlainReader"], done.stderr
