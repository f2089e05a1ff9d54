"""What `import grelmicro_fastapi` adds to a service that has imported FastAPI anyway."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

from bench.row import Block, Row

_SECONDS = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"
# The kernel counts in KiB on Linux and in bytes on macOS.
_MEBIBYTES = (
    "import resource, sys, {}; peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
    " print(peak / (2**20 if sys.platform == 'darwin' else 2**10))"
)
BARE, OURS = "fastapi", "fastapi, grelmicro_fastapi"


@asynccontextmanager
async def rows() -> AsyncGenerator[list[Row]]:
    def row(title: str, code: str, budget: float, unit: str, scale: float) -> Row:
        return Row(title, _block(code.format(OURS)), budget, _block(code.format(BARE)), "difference", unit, scale)

    yield [
        row("import beyond fastapi's", _SECONDS, 60, "ms", 1000),
        row("memory of the import beyond fastapi's", _MEBIBYTES, 8, "MiB", 1),
    ]


def _block(code: str) -> Block:
    return partial(_run, code)


async def _run(code: str) -> float:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    return float(output)
