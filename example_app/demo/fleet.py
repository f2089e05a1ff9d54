"""The service as it runs in production: `uvicorn --workers`, several processes behind one port."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx


class Fleet:
    """Starts the workers on a free port of this machine, and stops them. What they say goes to `folder`/log."""

    def __init__(self, app: str, folder: Path, environment: Mapping[str, str], *, workers: int = 4) -> None:
        self.workers = workers
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "log"
        self._environment = {**os.environ, **environment}
        self._command = [
            sys.executable, "-m", "uvicorn", app, "--workers", str(workers), "--port", str(self.port),
            "--no-access-log", "--timeout-keep-alive", "60", "--timeout-graceful-shutdown", "5",
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self.log.open("ab") as log:
            # In a session of its own: Ctrl-C is for us, and we tell the workers.
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )
        try:
            self.wait_ready()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def wait_ready(self, seconds: float = 60) -> set[int]:
        """Wait until every worker answers, and return their process ids. Raises `RuntimeError` if they do not."""
        found = set[int]()
        deadline = time.monotonic() + seconds
        while len(found) < self.workers:
            if time.monotonic() > deadline or self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"the workers do not start:\n{self.log.read_text()[-4000:]}")
            # Each new connection goes to whichever worker takes it first.
            with contextlib.suppress(httpx.TransportError):
                found.add(httpx.get(f"{self.url}/whoami", timeout=2).json()["pid"])
                continue
            time.sleep(0.05)
        return found

    def kill(self, pid: int) -> None:
        """End a worker as the machine would when memory runs out: it gets no chance to tidy up."""
        os.kill(pid, signal.SIGKILL)

    def freeze(self, pid: int) -> None:
        """Stop a worker in its tracks. Uvicorn replaces one that is silent for five seconds."""
        os.kill(pid, signal.SIGSTOP)

    def thaw(self, pid: int) -> None:
        """Let it go on, none the wiser."""
        os.kill(pid, signal.SIGCONT)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        # Whoever is left of the session: a worker that its parent lost sight of.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
