"""The demo, as `make demo` runs it, only shorter."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
