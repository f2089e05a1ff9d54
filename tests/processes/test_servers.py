"""How servers end their workers, and that none of these ends leaves behind what could have been given back."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from example_app.demo.fleet import _free_port
from grelmicro_fastapi.coordination import LeaderElection, ReadWriteLock
from grelmicro_fastapi.providers.sqlite import SqliteProvider

pytestmark = pytest.mark.anyio

APP = "tests.processes.holding:app"
MEMORY = "tests.processes.in_memory:app"
UVICORN = ["uvicorn", APP, "--port", "{port}"]


class Server:
    """A server in a process of its own, on the locks of one file."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, path: Path) -> None:
        self.process = process
        self.path = path
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=90)

    async def whoami(self) -> dict[str, object]:
        """Ask over a new connection, as often as it takes until there is an answer."""
        async with asyncio.timeout(60):
            while True:
                assert self.process.poll() is None, "the server has ended"
                with contextlib.suppress(httpx.TransportError):
                    return dict((await self.http.get("/whoami", headers={"Connection": "close"})).json())
                await asyncio.sleep(0.05)

    async def hold(self) -> "asyncio.Task[httpx.Response]":
        """Let a request hold the lock."""
        request = asyncio.create_task(self.http.post("/hold"))
        await self.wait_until(lambda held: "x" in held)
        return request

    async def wait_until(self, seen: Callable[[list[str]], bool]) -> None:
        """Look at what is held. Another process is looked at from outside."""
        async with asyncio.timeout(20):
            while True:
                if seen(await self.held()):
                    return
                await asyncio.sleep(0.02)

    async def ended(self) -> None:
        async with asyncio.timeout(20):
            await asyncio.to_thread(self.process.wait)

    async def held(self) -> list[str]:
        """What is still held in the store."""
        async with SqliteProvider(self.path) as provider:
            held = ["x"] if await ReadWriteLock("x", backend=provider).write.locked() else []
            return held + (["leader"] if await LeaderElection("tasks", backend=provider).record() else [])


def started(command: list[str], path: Path) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "COORDINATION_URL": f"sqlite:///{path}"}
    with path.with_name("log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", *command], env=environment, stdout=log, stderr=log, start_new_session=True
        )


@asynccontextmanager
async def serving(command: list[str], folder: Path) -> AsyncIterator[Server]:
    port, path = _free_port(), folder / "locks.db"
    process = started([part.format(port=port) for part in command], path)
    server = Server(process, port, path)
    try:
        await server.whoami()
        yield server
    finally:
        await server.http.aclose()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.to_thread(process.wait)


async def refused(request: "asyncio.Task[httpx.Response]") -> None:
    """The request ends, in whichever way."""
    with contextlib.suppress(httpx.TransportError):
        await asyncio.wait_for(request, 10)


async def test_a_graceful_shutdown_that_is_cut_short_still_releases(tmp_path: Path) -> None:
    async with serving([*UVICORN, "--timeout-graceful-shutdown", "1"], tmp_path) as server:
        request = await server.hold()
        server.process.terminate()
        await server.ended()
        await refused(request)
        assert await server.held() == []


async def test_ctrl_c_twice_still_releases(tmp_path: Path) -> None:
    async with serving(UVICORN, tmp_path) as server:
        request = await server.hold()
        server.process.send_signal(signal.SIGINT)
        await asyncio.sleep(0.2)  # two strokes, not one
        server.process.send_signal(signal.SIGINT)
        await server.ended()
        await refused(request)
        assert await server.held() == []


async def test_a_worker_that_has_served_its_requests_resigns(tmp_path: Path) -> None:
    async with serving([*UVICORN, "--limit-max-requests", "5"], tmp_path) as server:
        with contextlib.suppress(httpx.TransportError, AssertionError):
            while True:
                await server.whoami()
        await server.ended()
        assert await server.held() == []


async def test_the_server_that_reloads_resigns(tmp_path: Path) -> None:
    async with serving([*UVICORN, "--reload", "--reload-dir", str(tmp_path)], tmp_path) as server:
        server.process.terminate()
        await server.ended()
        assert await server.held() == []


@pytest.mark.parametrize(
    "command",
    [
        ["gunicorn", "--preload", "-w", "3", "-k", "asgi", "-b", "127.0.0.1:{port}", APP],
        ["gunicorn", "--preload", "-w", "3", "-k", "uvicorn.workers.UvicornWorker", "-b", "127.0.0.1:{port}", APP],
        ["fastapi", "run", "--workers", "3", "--host", "127.0.0.1", "--port", "{port}", "tests/processes/holding.py"],
    ],
    ids=["gunicorn", "gunicorn of uvicorn", "fastapi run"],
)
async def test_workers_that_start_together_are_not_one(command: list[str], tmp_path: Path) -> None:
    async with serving(command, tmp_path) as server:
        workers: dict[object, object] = {}
        leaders: set[object] = set()
        async with asyncio.timeout(30):
            while len(workers) < 3 or not leaders:
                said = await server.whoami()
                workers[said["pid"]] = said["worker"]
                if said["leading"]:
                    leaders.add(said["pid"])
        assert len(set(workers.values())) == 3
        assert len(leaders) == 1
        server.process.terminate()
        await server.ended()
        assert await server.held() == []


async def test_a_gunicorn_that_waits_for_a_request_has_resigned_at_once(tmp_path: Path) -> None:
    async with serving(["gunicorn", "-k", "asgi", "-b", "127.0.0.1:{port}", APP], tmp_path) as server:
        request = await server.hold()
        server.process.terminate()
        await server.wait_until(lambda held: held == ["x"])
        # It would wait half a minute for the request, unless it is told to be quick.
        server.process.send_signal(signal.SIGINT)
        await server.ended()
        await refused(request)
        assert await server.held() == []


@pytest.mark.parametrize(
    ("command", "count"),
    [
        (["tests.processes.in_memory", "{port}", "2"], 2),
        (["tests.processes.in_memory", "{port}", "1"], 1),
        (["uvicorn", MEMORY, "--port", "{port}", "--workers", "2"], 2),
        (["fastapi", "run", "--workers", "2", "--port", "{port}", "tests/processes/in_memory.py"], 2),
        (["gunicorn", "-w", "2", "-k", "uvicorn.workers.UvicornWorker", "-b", "127.0.0.1:{port}", MEMORY], 2),
        (["gunicorn", "-c", "{folder}/conf.py", "-k", "asgi", "-b", "127.0.0.1:{port}", MEMORY], 2),
        (["gunicorn", "-k", "asgi", "-b", "127.0.0.1:{port}", MEMORY], 1),
    ],
    ids=[
        "uvicorn.run",
        "uvicorn.run one",
        "uvicorn",
        "fastapi run",
        "gunicorn",
        "gunicorn by its file",
        "gunicorn one",
    ],
)
async def test_however_several_workers_were_asked_for_it_is_known(
    command: list[str], count: int, tmp_path: Path
) -> None:
    (tmp_path / "conf.py").write_text("workers = 2")
    async with serving([part.replace("{folder}", str(tmp_path)) for part in command], tmp_path) as server:
        told = (await server.http.get("/readyz")).json()
        assert told.get("notes") == (["memory is per process, and 2 workers run"] if count == 2 else None)
    assert ("locks of its own" in (tmp_path / "log").read_text()) == (count == 2)
