"""The operator's command line: `grelmicro-fastapi`. Needs the `cli` extra."""

import asyncio
import importlib
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

from grelmicro_fastapi.coordination.crew import Crew
from grelmicro_fastapi.coordination.names import LEADER, LOCK, READWRITELOCK, TASKLOCK, TICK
from grelmicro_fastapi.coordination.rules import step
from grelmicro_fastapi.coordination.state import Command, Force, Mend, State, Vacate, Verdict
from grelmicro_fastapi.errors import GrelmicroError
from grelmicro_fastapi.providers.sqlite import SqliteProvider
from grelmicro_fastapi.providers.urls import provider_from_url
from grelmicro_fastapi.web.install import installed_in
from grelmicro_fastapi.web.lint import lint

try:
    import typer
except ImportError:
    sys.exit("the command line needs an extra: pip install grelmicro-fastapi[cli]")

T = TypeVar("T")

_KINDS = (LOCK, READWRITELOCK, TASKLOCK, LEADER, TICK)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    # What a traceback shows of local variables may be a password.
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
    help="Look at locks, and mend what went wrong.",
)

Url = Annotated[
    str,
    typer.Option(
        envvar="COORDINATION_URL", show_envvar=True, help="Where the locks are kept: redis://, postgresql://..."
    ),
]
Idle = Annotated[float, typer.Option(min=0, help="Only names untouched for so many seconds.")]
Key = Annotated[str, typer.Argument(help="Kind and name, such as rwlock:catalog or lock:order:7.")]


@app.command()
def check(target: Annotated[str, typer.Argument(help="The application, such as shop.main:app.")]) -> None:
    """Report uses of guards that will go badly. Exit status 1 if there are any."""
    app = _application(target)
    micro = installed_in(app)
    found = lint(app, micro.elections if micro else None)
    for finding in found:
        typer.echo(str(finding))
    typer.echo(f"{len(found)} findings" if found else "nothing found")
    raise typer.Exit(bool(found))


@app.command()
def sql(schema: Annotated[str, typer.Option(help="The schema that holds the tables.")] = "grelmicro") -> None:
    """Print the SQL that makes the PostgreSQL schema, or brings it up to date."""
    # Only this command needs the driver.
    postgres = importlib.import_module("grelmicro_fastapi.providers.postgres")
    typer.echo(postgres.PostgresProvider("postgresql://localhost/none", schema=schema).sql())


@app.command()
def locks(url: Url, prefix: Annotated[str, typer.Option(help="Only keys that begin with this.")] = "") -> None:
    """List every key that the store keeps, with who is in."""

    async def look(crew: Crew) -> None:
        keys = [key async for key in crew.store.keys(prefix)]
        for key in sorted(keys):
            typer.echo(f"{key}  {_line(*await _peek(crew, key))}")

    _run(url, look)


@app.command()
def show(url: Url, key: Key) -> None:
    """Show one lock: who holds it, for how long, who waits."""

    async def look(crew: Crew) -> None:
        state, now = await _peek(crew, _checked(key))
        typer.echo(f"{key}  {_line(state, now)}")
        if state.writer:
            left = (state.writer.until - now) / 1000
            typer.echo(f"  writer {_worker(state.writer.token)}, {left:.1f} s left")
        for token, until in state.readers.items():
            typer.echo(f"  reader {_worker(token)}, {(until - now) / 1000:.1f} s left")
        for seat in state.seats:
            typer.echo(f"  waits {'to write' if seat.mode == 'w' else 'to read'}")

    _run(url, look)


@app.command()
def watch(url: Url, key: Key, every: Annotated[float, typer.Option(help="Seconds between two looks.")] = 1.0) -> None:
    """Show one lock again and again, whenever it changed, until Ctrl-C."""

    async def look(crew: Crew) -> None:
        before = ""
        while True:
            line = _line(*await _peek(crew, _checked(key)))
            if line != before:
                typer.echo(f"{time.strftime('%H:%M:%S')}  {line}")
            before = line
            await asyncio.sleep(every)

    _run(url, look)


@app.command()
def release(
    url: Url,
    key: Key,
    force: Annotated[bool, typer.Option("--force", help="Yes, end holds that may still be at work.")] = False,
) -> None:
    """End every hold of a lock. A writer's end poisons it; its holder's next check fails."""
    if not force:
        _fail("this ends a hold that may still be at work: say --force if you mean it")
    _tell(url, key, Force(), "released", "nobody held it")


@app.command()
def mend(url: Url, key: Key) -> None:
    """Say that the resource is whole again: clear the poison."""

    async def clear(crew: Crew) -> None:
        state, _ = await _peek(crew, _checked(key))
        if not state.poisoned and not (state.writer and state.writer.poisoned):
            typer.echo("nothing to mend")
            return
        await crew.courier.ask(key, Mend())
        typer.echo("mended")

    _run(url, clear)


@app.command()
def purge(url: Url, idle: Idle) -> None:
    """Drop the records of idle names. Fencing tokens go on growing all the same."""

    async def drop(crew: Crew) -> None:
        typer.echo(f"{await crew.store.purge(idle)} names dropped")

    _run(url, drop)


def main() -> None:
    """Run, and report an error of the library as one line."""
    try:
        app()
    except (GrelmicroError, ImportError) as error:
        _fail(str(error))


def _application(target: str) -> object:
    module, _, path = target.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    way_out = "name the application as MODULE:NAME, such as shop.main:app"
    try:
        found: object = importlib.import_module(module)
    except (ModuleNotFoundError, ValueError) as missing:
        # What the module itself cannot import is said as it is.
        if (
            isinstance(missing, ModuleNotFoundError)
            and missing.name
            and not f"{module}.".startswith(f"{missing.name}.")
        ):
            raise
        _fail(f"there is no module {module!r} to be imported from {Path.cwd()}: {way_out}")
    for name in (path or "app").split("."):
        if not hasattr(found, name):
            _fail(f"{module!r} has no {path or 'app'!r}: {way_out}")
        found = getattr(found, name)
    if not hasattr(found, "routes"):
        _fail(f"{target!r} is no application but a {type(found).__name__}: {way_out}")
    return found


def _tell(url: str, key: str, command: Command, done: str, nothing: str) -> None:
    async def ask(crew: Crew) -> None:
        reply = await crew.courier.ask(_checked(key), command)
        typer.echo(done if reply.verdict is Verdict.GRANTED else nothing)

    _run(url, ask)


def _run(url: str, act: Callable[[Crew], Awaitable[T]]) -> T:
    chosen = provider_from_url(url)
    if isinstance(chosen, SqliteProvider) and not chosen.path.exists():
        # Opening would make it, and nobody who looks means to.
        _fail(f"there is no SQLite file {str(chosen.path)!r}: nothing was ever locked there")

    async def opened() -> T:
        async with chosen as provider:
            await provider.check()
            return await act(provider.backend.crew())

    try:
        return asyncio.run(opened())
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


async def _peek(crew: Crew, key: str) -> tuple[State, int]:
    state, now = await crew.courier.peek(key)
    step(state, Vacate(), now)
    return state, now


def _line(state: State, now: int) -> str:
    holds = "writing" if state.writer and state.writer.token else "cooling down" if state.writer else "free"
    if state.readers:
        holds = f"{len(state.readers)} reading"
    poisoned = ", poisoned" if state.poisoned else ""
    return f"{holds}, token {state.fence}, {len(state.seats)} waiting{poisoned}"


def _worker(token: str) -> str:
    """The worker's name. The rest of a token is a secret: whoever has it owns the lock."""
    worker = token.rsplit(":", 3)[0]
    return worker if worker and worker != token else "nobody (a minimal hold)"


def _checked(key: str) -> str:
    if not key.startswith(_KINDS):
        _fail(f"{key!r} has no kind: write {', '.join(kind + 'NAME' for kind in _KINDS)}")
    return key


def _fail(why: str) -> NoReturn:
    typer.echo(why, err=True)
    raise SystemExit(2)
