"""What `import grelmicro_fastapi` adds to a service that has imported FastAPI anyway."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

from bench.row import Block, Row

_SECONDS = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"
# Not from `getrusage` where there is `/proc`: what that counts includes the process that started this one.
_MEBIBYTES = """
import {}, pathlib, re, resource
status = pathlib.Path("/proc/self/status")
if status.exists():
    print(int(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1]) / 2**10)
else:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""
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
