"""grelmicro 0.41.1 beside us, if GRELMICRO_PYTHON names a Python that has it.

It needs Python 3.12 or newer, best the same as ours:

    python -m venv /tmp/peer && /tmp/peer/bin/pip install grelmicro==0.41.1 aiosqlite
    make bench GRELMICRO_PYTHON=/tmp/peer/bin/python
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial

from bench.row import Block

Peer = Callable[[str], Block]
"""Names one of the blocks of `peer_process`."""


@asynccontextmanager
async def grelmicro() -> AsyncGenerator[Peer | None]:
    """The peer's process, or `None` if there is none on this machine."""
    python = os.environ.get("GRELMICRO_PYTHON")
    if not python:
        yield None
        return
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(python, "-m", "bench.peer_process", stdin=pipe, stdout=pipe)
    try:
        yield lambda name: partial(_ask, process, name)
    finally:
        assert process.stdin
        process.stdin.close()
        await process.wait()


async def _ask(process: asyncio.subprocess.Process, name: str) -> float:
    assert process.stdin
    assert process.stdout
    process.stdin.write(f"{name}\n".encode())
    return float(await process.stdout.readline())
