"""The demo, as `make demo` runs it, only shorter."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from example_app.demo.accidents import Stage, noted
from example_app.demo.client import Client
from example_app.demo.fleet import Fleet
from example_app.demo.history import Outcome
from example_app.demo.load import Record
from grelmicro_fastapi.providers.sqlite import SqliteProvider

REPOSITORY = Path(__file__).parents[2]


def demo(code: str = "", seconds: int = 4) -> "subprocess.Popen[str]":
    command = [sys.executable, *(["-c", code] if code else ["-m", "example_app.demo"])]
    return subprocess.Popen(
        ["env", f"DEMO_SECONDS={seconds}", *command],
        cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def test_the_demo_kills_a_holder_and_loses_nothing() -> None:
    with demo(seconds=8) as process:
        said = process.communicate(timeout=120)[0]
    assert process.returncode == 0, said
    assert "kill -9" in said
    assert "poisoned: true" in said
    assert "No acknowledged update was lost" in said


def test_the_demo_fails_where_updates_are_lost() -> None:
    code = "import sys; from example_app.demo.__main__ import main; sys.exit(main('tests.example.unguarded:app'))"
    with demo(code, seconds=2) as process:
        said = process.communicate(timeout=120)[0]
    assert process.returncode == 1, said
    assert "NOT AS PROMISED" in said
    assert "lost" in said


@pytest.mark.parametrize("accident", ["kill -9", "stopped in the middle"])
def test_the_demo_ends_calmly_in_the_middle_of_an_accident(accident: str) -> None:
    with demo(seconds=8) as process:
        assert process.stdout
        said = ""
        while accident not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        process.send_signal(signal.SIGINT)
        said += process.communicate(timeout=120)[0]
    assert process.returncode == 0, said
    assert "No acknowledged update was lost" in said
    assert "Traceback" not in said


@pytest.mark.anyio
async def test_an_accident_that_ends_early_leaves_its_update_unknown(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(hear, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        stage = Stage(Fleet("", tmp_path, {}), SqliteProvider(tmp_path / "locks"), Record(), print, 0)
        async with Client(url) as client:
            update = asyncio.create_task(noted(stage, client, None))
            await asked.wait()
            update.cancel()
            await asyncio.gather(update, return_exceptions=True)
    assert [one.outcome for one in stage.record.updates] == [Outcome.UNKNOWN]


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_ends_early_when_it_is_told_to_and_still_concludes(sign: signal.Signals) -> None:
    with demo(seconds=600) as process:
        assert process.stdout
        said = process.stdout.readline()
        while "time updates" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        process.send_signal(sign)
        said += process.communicate(timeout=120)[0]
    assert process.returncode == 0, said
    assert "No acknowledged update was lost" in said
