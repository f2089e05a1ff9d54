"""From the release in one process until the waiter in another one runs."""

import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path

from bench.row import Block, Row


@asynccontextmanager
async def rows() -> AsyncGenerator[list[Row]]:
    with tempfile.TemporaryDirectory() as folder:
        async with between(f"sqlite:///{Path(folder, 'locks.sqlite')}") as block:
            yield [Row("sqlite: hand-over between processes", block, 15.0, kind="alone", unit="ms", scale=1000)]


@asynccontextmanager
async def between(url: str) -> AsyncGenerator[Block]:
    """Two processes that hand a lock to and fro. The block gives the median seconds of one hand-over."""
    async with AsyncExitStack() as stack:
        players = [await stack.enter_async_context(_player(url)) for _ in range(2)]

        async def block() -> float:
            held: dict[int, tuple[float, float, int]] = {}
            for player in players:
                assert player.stdin
                player.stdin.write(b"\n")
            for place, player in enumerate(players):
                assert player.stdout
                for token, acquired, released in json.loads(await player.stdout.readline()):
                    held[token] = acquired, released, place
            in_turn = [held[token] for token in sorted(held)]
            return statistics.median(
                after[0] - before[1] for before, after in pairwise(in_turn) if before[2] != after[2]
            )

        yield block


@asynccontextmanager
async def _player(url: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    player = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.player", url, stdin=pipe, stdout=pipe)
    try:
        yield player
    finally:
        assert player.stdin
        player.stdin.close()
        await player.wait()
