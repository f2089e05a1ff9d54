"""The plan of the house, kept by a machine: who may import whom, and how big a room may be."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
PACKAGE = "grelmicro_fastapi"
FILES = sorted((REPOSITORY / PACKAGE).rglob("*.py"))

# Bottom up. The package's own `__init__.py`, the shop window, stands above them all.
FLOORS = ["errors", "settings", "context", "coordination", "providers", "tasks", "web", "app", "cli", "testing"]
ROOF = len(FLOORS)

# Who may import what from outside. What is not listed here is free for all.
ONLY_IN = {
    "fastapi": ("web/", "app/", "testing/"),
    "starlette": ("web/", "app/", "testing/"),
    "opentelemetry": ("coordination/", "tasks/", "web/", "app/"),
    "pydantic": ("settings.py", "coordination/", "tasks/", "web/"),
    "aiosqlite": ("providers/sqlite",),
    "sqlite3": ("providers/sqlite",),
    "asyncpg": ("providers/postgres",),
    "redis": ("providers/redis",),
    "hiredis": ("providers/redis",),
    "valkey": ("providers/valkey",),
    "kubernetes_asyncio": ("providers/kubernetes",),
    "aiohttp": ("providers/kubernetes",),
    "typer": ("cli",),
    "jinja2": ("web/dashboard",),
    "uvicorn": (),
    "httpx": ("testing/",),
}
DRIVERS = [
    "aiohttp",
    "aiosqlite",
    "asyncpg",
    "hiredis",
    "httpx",
    "jinja2",
    "kubernetes_asyncio",
    "redis",
    "typer",
    "uvicorn",
]
DRIVERS += ["valkey"]

# A name that fits everything explains nothing.
VAGUE = {"base_utils", "common", "helper", "helpers", "impl", "manager", "managers", "misc", "util", "utils"}

REGISTRIES = re.compile(
    r"\b(?:pypi|pythonhosted|npmjs|yarnpkg|crates|proxy\.golang|ghcr|docker|anaconda|conda-forge)\.(?:org|com|io|dev)\b"
)


def module(file: Path) -> str:
    parts = file.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def floor(name: str) -> int:
    parts = name.split(".")
    return ROOF if len(parts) == 1 else FLOORS.index(parts[1])


MODULES = {module(file): file for file in FILES}
every_module = pytest.mark.parametrize("name", MODULES)


def imports(name: str) -> Iterator[tuple[int, str]]:
    """Line and module of each import, wherever it stands, `if TYPE_CHECKING:` included."""
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}:{node.lineno}: import by the full name"
            source = str(node.module)
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                yield node.lineno, submodule if submodule in MODULES else source


def inside(name: str) -> Iterator[tuple[int, str]]:
    return ((line, other) for line, other in imports(name) if other.split(".")[0] == PACKAGE)


@every_module
def test_every_module_stands_on_a_known_floor(name: str) -> None:
    assert name == PACKAGE or name.split(".")[1] in FLOORS


@every_module
def test_nobody_imports_upstairs(name: str) -> None:
    upstairs = [f"line {line}: {other}" for line, other in inside(name) if floor(other) > floor(name)]
    assert not upstairs


@every_module
def test_nobody_inside_imports_through_the_shop_window(name: str) -> None:
    assert PACKAGE not in [other for _, other in inside(name)]


def test_there_are_no_circles() -> None:
    graph = {name: {other for _, other in inside(name)} for name in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@every_module
def test_imports_stand_at_the_top(name: str) -> None:
    functions = [
        node
        for node in ast.walk(ast.parse(MODULES[name].read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    hidden = [
        node.lineno
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not hidden


@every_module
def test_what_comes_from_outside_stays_where_it_belongs(name: str) -> None:
    place = MODULES[name].relative_to(REPOSITORY / PACKAGE).as_posix()
    astray = [
        f"line {line}: {other}"
        for line, other in imports(name)
        if (allowed := ONLY_IN.get(other.split(".")[0])) is not None and not place.startswith(allowed)
    ]
    assert not astray


@pytest.mark.parametrize("room", [PACKAGE, f"{PACKAGE}.coordination", f"{PACKAGE}.providers"])
def test_importing_the_package_pulls_in_no_driver(room: str) -> None:
    code = f"import {room}, sys; print(*(set(sys.modules) & set({DRIVERS!r})))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert (ran.returncode, ran.stdout.split(), ran.stderr) == (0, [], "")


@pytest.mark.parametrize("room", ["coordination", "providers", "providers.memory"])
def test_the_floors_below_the_web_work_without_it(room: str) -> None:
    # The shop window shows the web floor too, so it is left closed here.
    code = (
        "import sys, types\n"
        f"window = types.ModuleType({PACKAGE!r})\n"
        f"window.__path__ = [{str(REPOSITORY / PACKAGE)!r}]\n"
        f"sys.modules[{PACKAGE!r}] = window\n"
        f"import {PACKAGE}.{room}\n"
        "print(*(set(sys.modules) & {'fastapi', 'starlette'}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert (ran.returncode, ran.stdout.split(), ran.stderr) == (0, [], "")


@every_module
def test_a_room_has_at_most_250_lines(name: str) -> None:
    lines = len(MODULES[name].read_text().splitlines())
    assert lines <= 250


@every_module
def test_a_room_is_named_for_what_it_does(name: str) -> None:
    assert not set(name.split(".")) & VAGUE


@every_module
def test_a_room_says_what_it_is_for(name: str) -> None:
    # An `__init__.py` is a shop window: what it shows is what it is for.
    file = MODULES[name]
    said = file.name == "__init__.py" or bool(ast.get_docstring(ast.parse(file.read_text())))
    assert said


def test_no_file_names_a_registry() -> None:
    named = [
        str(file.relative_to(REPOSITORY))
        for file in tracked()
        if REGISTRIES.search(file.read_bytes().decode("utf-8", "replace"))
    ]
    assert not named


def tracked() -> list[Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    if listed.returncode == 0:
        files = [REPOSITORY / name for name in listed.stdout.split("\0") if name]
    else:  # an archive, not a clone
        files = [file for folder in (PACKAGE, "tests", "docs", ".ci") for file in (REPOSITORY / folder).rglob("*")]
        files += list(REPOSITORY.glob("*"))
    return [file for file in files if file.is_file() and "__pycache__" not in file.parts]
