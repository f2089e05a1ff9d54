"""The processes in which locks are measured, each with one contender.

grelmicro 0.41.1 is measured beside us if GRELMICRO_PYTHON names a Python that has it. It needs Python 3.12 or newer,
best the same as ours:

    python -m venv /tmp/peer
    /tmp/peer/bin/pip install grelmicro==0.41.1 aiosqlite asyncpg redis hiredis
    make bench GRELMICRO_PYTHON=/tmp/peer/bin/python
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from bench.row import Block

_LINE = 2**26
_PATIENCE = 60.0


class Member:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process, what: str) -> None:
        self._process = process
        self._what = what

    async def ask(self, game: str, **options: Any) -> Any:
        """Let it play one of the `games`. Raises `RuntimeError` if it cannot."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps([game, options]).encode() + b"\n")
        well, told = json.loads(await self._line())
        if not well:
            raise RuntimeError(f"{self._what}: {told}")
        return told

    def block(self, game: str, **options: Any) -> Block:
        """A block that is one such game."""

        async def block() -> float:
            return float(await self.ask(game, **options))

        return block

    async def ready(self) -> None:
        """Wait until it is connected."""
        await self._line()

    def kill(self) -> None:
        """End it without a warning."""
        self._process.kill()

    async def end(self) -> None:
        """Let it finish."""
        assert self._process.stdin
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                await self._process.wait()
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def _line(self) -> bytes:
        assert self._process.stdout
        async with asyncio.timeout(_PATIENCE):
            line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of {self._what} has ended: see its error output")
        return line


@asynccontextmanager
async def member(kind: str, url: str, python: str = sys.executable) -> AsyncGenerator[Member]:
    """One process that has that contender."""
    pipe = asyncio.subprocess.PIPE
    words = (python, "-m", "bench.member", kind, url)
    one = Member(await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, limit=_LINE), kind)
    try:
        await one.ready()
        yield one
    finally:
        await one.end()


@asynccontextmanager
async def fleet(kind: str, url: str, size: int, python: str = sys.executable) -> AsyncGenerator[Sequence[Member]]:
    """Several."""
    async with AsyncExitStack() as stack:
        opening = [member(kind, url, python) for _ in range(size)]
        yield [await stack.enter_async_context(one) for one in opening]


@asynccontextmanager
async def peers(url: str, size: int = 1) -> AsyncGenerator[Sequence[Member]]:
    """Processes that have grelmicro, or none at all if it is not on this machine."""
    python = os.environ.get("GRELMICRO_PYTHON")
    async with fleet("grelmicro", url, size if python else 0, python or sys.executable) as members:
        yield members
