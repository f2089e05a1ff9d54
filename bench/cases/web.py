"""A request whose handler holds a write guard, under `wrk`, on one worker of uvicorn."""

import asyncio
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from bench import servers
from bench.row import Block, Row
from tests.servers.redis import free_port

TITLE = "web: request under write_guard on Redis / two bare EVALSHA"
ONE_EACH = """
local number = 0
request = function()
    number = number + 1
    return wrk.format("PUT", "/orders/" .. number)
end
"""
"""Each request has a name of its own, so nobody waits for anybody."""


@asynccontextmanager
async def rows() -> AsyncGenerator[list[Row]]:
    wrk = shutil.which("wrk")
    if not wrk:
        yield [Row(TITLE, None, 1 / 1.2, note="wrk is not on the PATH")]
        return
    with servers.redis() as server, tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(ONE_EACH)
        script.flush()
        async with _served("guarded", server.url) as guarded, _served("bare", server.url) as bare:
            yield [Row(TITLE, _under(wrk, script.name, guarded), 1 / 1.2, _under(wrk, script.name, bare))]


@asynccontextmanager
async def _served(app: str, url: str) -> AsyncGenerator[str]:
    port = free_port()
    words = [sys.executable, "-m", "uvicorn", f"bench.web_apps:{app}", "--port", str(port), "--log-level", "warning"]
    process = await asyncio.create_subprocess_exec(*words, "--no-access-log", env={"REDIS_URL": url})
    try:
        await _until_it_listens(process, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _until_it_listens(process: asyncio.subprocess.Process, port: int) -> None:
    async with asyncio.timeout(30):
        while process.returncode is None:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return
    raise RuntimeError("uvicorn did not start: see its error output")


def _under(wrk: str, script: str, url: str) -> Block:
    """The mean seconds that the worker needs for a request."""

    async def block() -> float:
        words = [wrk, "-t1", "-c16", "-d1s", "-s", str(Path(script)), url]
        process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        output = (await process.communicate())[0].decode()
        if "Non-2xx" in output or "Socket errors" in output:
            raise RuntimeError(f"wrk got errors: {output}")
        rate = re.search(r"Requests/sec:\s+([\d.]+)", output)
        assert rate, output
        return 1 / float(rate[1])

    return block
