"""The operator's command line, run as a process on a SQLite file."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from grelmicro_fastapi.coordination import Lock, ReadWriteLock
from grelmicro_fastapi.providers.sqlite import SqliteProvider

APP = """
from typing import Annotated
from fastapi import Depends, FastAPI
from grelmicro_fastapi import ReadGuard, WriteGuard, read_guard, write_guard

app = FastAPI()

@app.get("/good")
async def good(guard: Annotated[ReadGuard, Depends(read_guard("catalog"))]) -> None: ...
"""
BAD = """
@app.put("/bad")
async def bad(
    one: Annotated[ReadGuard, Depends(read_guard("catalog"))],
    two: Annotated[WriteGuard, Depends(write_guard("catalog"))],
) -> None: ...
"""


def cli(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from grelmicro_fastapi.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=60,
        check=False,
    )


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A file in which a writer died, a lock is held, and a name is idle."""
    path = tmp_path / "locks.db"

    async def fill() -> None:
        async with SqliteProvider(str(path)) as provider:
            lock = ReadWriteLock("catalog", backend=provider)
            await (await lock.write.acquire()).release(poison=True)
            async with Lock("idle", backend=provider):
                pass
            await Lock("held", backend=provider, worker="worker-7").acquire()

    asyncio.run(fill())
    return f"sqlite:///{path}"


def test_locks_lists_every_key_and_never_a_token(url: str) -> None:
    told = cli("locks", "--url", url)
    assert told.returncode == 0, told.stderr
    lines = told.stdout.splitlines()
    assert lines == [
        "lock:held  writing, token 1, 0 waiting",
        "lock:idle  free, token 1, 0 waiting",
        "rwlock:catalog  free, token 1, 0 waiting, poisoned",
    ]


def test_show_names_the_worker_and_hides_the_token(url: str) -> None:
    told = cli("show", "--url", url, "lock:held")
    assert "writer worker-7, 5" in told.stdout
    assert ":task:" not in told.stdout


def test_release_wants_force_and_then_poisons(url: str) -> None:
    refused = cli("release", "--url", url, "lock:held")
    assert refused.returncode == 2
    assert "--force" in refused.stderr
    assert "writing" in cli("show", "--url", url, "lock:held").stdout
    assert cli("release", "--url", url, "lock:held", "--force").stdout == "released\n"
    assert "free, token 1, 0 waiting, poisoned" in cli("show", "--url", url, "lock:held").stdout


def test_mend_clears_the_poison(url: str) -> None:
    assert cli("mend", "--url", url, "rwlock:catalog").stdout == "mended\n"
    assert "poisoned" not in cli("show", "--url", url, "rwlock:catalog").stdout


def test_what_is_whole_needs_no_mending(url: str) -> None:
    assert cli("mend", "--url", url, "rwlock:nobody").stdout == "nothing to mend\n"
    assert "rwlock:nobody" not in cli("locks", "--url", url).stdout


def test_purge_drops_the_idle_and_keeps_what_is_held_or_poisoned(url: str) -> None:
    assert cli("purge", "--url", url, "--idle", "0").stdout == "1 names dropped\n"
    assert "lock:idle" not in cli("locks", "--url", url).stdout
    assert "lock:held" in cli("locks", "--url", url).stdout


def test_a_key_without_a_kind_is_refused_with_the_kinds(url: str) -> None:
    told = cli("show", "--url", url, "catalog")
    assert told.returncode == 2
    assert "rwlock:NAME" in told.stderr


def test_a_url_of_no_store_is_one_line_on_standard_error() -> None:
    told = cli("locks", "--url", "mysql://root:secret@localhost/db")
    assert told.returncode == 2
    assert "Traceback" not in told.stderr
    assert "secret" not in told.stderr


def test_sql_prints_the_schema_that_was_asked_for() -> None:
    told = cli("sql", "--schema", "locks")
    assert told.returncode == 0
    assert "CREATE SCHEMA" in told.stdout.upper()
    assert "locks" in told.stdout


def test_check_says_what_will_go_badly_and_ends_with_1(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    good = cli("check", "shop:app", folder=tmp_path)
    assert (good.returncode, good.stdout) == (0, "nothing found\n"), good.stderr
    (tmp_path / "shop.py").write_text(APP + BAD)
    bad = cli("check", "shop:app", folder=tmp_path)
    assert bad.returncode == 1
    assert "/bad" in bad.stdout
    assert "two-modes" in bad.stdout


@pytest.mark.parametrize(
    ("target", "fact"),
    [
        ("shop:nope", "'shop' has no 'nope'"),
        ("shop:good.nope", "'shop' has no 'good.nope'"),
        ("shop:good", "'shop:good' is no application but a function"),
        ("nowhere:app", "there is no module 'nowhere'"),
        ("shop.main:app", "there is no module 'shop.main'"),
        (":app", "there is no module ''"),
    ],
)
def test_check_of_what_is_no_application_says_so(tmp_path: Path, target: str, fact: str) -> None:
    (tmp_path / "shop.py").write_text(APP)
    told = cli("check", target, folder=tmp_path)
    assert told.returncode == 2
    assert told.stderr.startswith(fact)
    assert "such as shop.main:app" in told.stderr
    assert "Traceback" not in told.stderr


def test_check_says_what_the_module_itself_cannot_import(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import nowhere\n" + APP)
    assert cli("check", "shop:app", folder=tmp_path).stderr == "No module named 'nowhere'\n"


def test_check_knows_the_elections_of_an_installed_app(tmp_path: Path) -> None:
    installed = """
from grelmicro_fastapi import Grelmicro
from grelmicro_fastapi.web.leader import leader_guard
Grelmicro().install(app)

@app.get("/sweep", dependencies=[Depends(leader_guard("main"))])
async def sweep() -> None: ...
"""
    (tmp_path / "shop.py").write_text(APP + installed)
    assert "unknown-election: GET /sweep" in cli("check", "shop:app", folder=tmp_path).stdout


@pytest.mark.parametrize("command", [["locks"], ["show", "lock:x"], ["mend", "lock:x"], ["purge", "--idle", "0"]])
def test_a_file_that_is_not_there_is_not_made(tmp_path: Path, command: list[str]) -> None:
    told = cli(command[0], "--url", f"sqlite:///{tmp_path / 'locks.db'}", *command[1:])
    assert told.returncode == 2
    assert "there is no SQLite file" in told.stderr
    assert not list(tmp_path.iterdir())
