"""From SIGTERM to a leader until another process leads."""

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from bench import servers
from bench.row import Row

_BUDGET = 200.0
_QUEUEING = 0.3
"""Seconds until whoever stands has its place in the queue."""
_PATIENCE = 60.0


class _Pair:
    """A process that leads, and one that stands by."""

    def __init__(self, url: str) -> None:
        self._environment = {**os.environ, "COORDINATION_URL": url}
        self._leader: asyncio.subprocess.Process | None = None
        self._heir: asyncio.subprocess.Process | None = None

    async def hand_over(self) -> float:
        """One hand-over, in seconds."""
        if self._leader is None:
            self._leader = await self._start()
            await _says(self._leader, "leads")
        self._heir = await self._start()
        await _says(self._heir, "stands")
        await asyncio.sleep(_QUEUEING)
        told = time.monotonic()
        self._leader.terminate()
        began = await _says(self._heir, "leads")
        await self._leader.wait()
        self._leader, self._heir = self._heir, None
        return began - told

    async def end(self) -> None:
        for process in (self._leader, self._heir):
            if process and process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.leader_app", env=self._environment, stdout=asyncio.subprocess.PIPE
        )


async def _says(process: asyncio.subprocess.Process, what: str) -> float:
    """When it did that."""
    assert process.stdout
    async with asyncio.timeout(_PATIENCE):
        while True:
            said, _, when = (await process.stdout.readline()).decode().partition(" ")
            if not said:
                raise RuntimeError("a worker that should lead has ended")
            if said == what:
                return float(when)


@asynccontextmanager
async def rows() -> AsyncGenerator[list[Row]]:
    with tempfile.TemporaryDirectory() as folder, servers.redis() as redis, servers.postgres() as postgres:
        stores = {"sqlite": f"sqlite:///{Path(folder, 'locks.sqlite')}", "redis": redis.url, "postgres": postgres}
        pairs = {name: _Pair(url) for name, url in stores.items()}
        try:
            yield [
                Row(
                    f"{name}: SIGTERM to a leader until another leads",
                    pair.hand_over,
                    _BUDGET,
                    kind="alone",
                    unit="ms",
                    scale=1000,
                    at_most=5,
                )
                for name, pair in pairs.items()
            ]
        finally:
            await asyncio.gather(*(pair.end() for pair in pairs.values()))
