"""Type checkers refuse one guard where another is due."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "tests/typing/guards.py"
CHECKERS = pytest.mark.parametrize("checker", ["mypy", "pyright"])


def check(checker: str, file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", checker, str(file)], capture_output=True, text=True, cwd=ROOT)


@CHECKERS
def test_every_mistake_is_seen_and_nothing_else_is_one(checker: str) -> None:
    checked = check(checker, EXAMPLES)
    assert checked.returncode == 0, checked.stdout


@CHECKERS
def test_a_mistake_that_nobody_expects_fails_the_check(checker: str, tmp_path: Path) -> None:
    lines = EXAMPLES.read_text().splitlines()
    bare = [line.partition("  # type: ignore")[0] for line in lines]
    copy = tmp_path / "bare.py"
    copy.write_text("\n".join(bare) + "\n")
    checked = check(checker, copy)
    mistakes = [number for number, line in enumerate(lines, 1) if "# type: ignore" in line]
    assert checked.returncode == 1
    assert [number for number in mistakes if f"bare.py:{number}:" not in checked.stdout] == []
