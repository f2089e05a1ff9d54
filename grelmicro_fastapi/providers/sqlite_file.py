"""The file: where it may lie, how it is opened, and one transaction on it. Runs on the connection's own thread."""

import contextlib
import logging
import os
import random
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.coordination.rules import step
from grelmicro_fastapi.coordination.state import VERSION, Vacate
from grelmicro_fastapi.errors import BackendError, SettingsValidationError
from grelmicro_fastapi.providers import sqlite_rows as rows
from grelmicro_fastapi.providers.sqlite_fork import Slot

T = TypeVar("T")
GivenUp = Callable[[], bool]

MOUNTS = Path("/proc/mounts")
_LAYOUT = 1
_NEVER = 2**62
_log = logging.getLogger("grelmicro_fastapi.providers")

# WAL needs memory that all processes share; on these, processes may be on different machines.
_NETWORK = re.compile(
    r"(nfs\d?|cifs|smb\d?|smbfs|afs|ceph|lustre|gpfs|beegfs|glusterfs|ocfs2|gfs2|davfs"
    r"|fuse\.(sshfs|s3fs|gcsfuse|rclone|glusterfs|ceph|ceph-fuse|davfs2?|juicefs|goofys|blobfuse2?|nfs))$"
)


def boot_id() -> str:
    """Names the present run of the machine, or "" where it has no name for it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        if sys.platform != "darwin":
            return ""
    command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def refuse_network(path: Path, mounts: Path = MOUNTS) -> None:
    """Raise `SettingsValidationError` if the file would lie on a network file system."""
    try:
        table = mounts.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return
    folder = path.resolve().parent
    kind, depth = "", -1
    for line in table:
        _, point, found, *_ = line.split(" ")
        where = Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), point))
        # The last of several mounts on one point is the one that is seen.
        if len(where.parts) >= depth and folder.is_relative_to(where):
            kind, depth = found, len(where.parts)
    if _NETWORK.match(kind):
        raise SettingsValidationError(
            f"the SQLite file {str(path)!r} lies on a network file system ({kind}), where processes on several machines"
            " do not see each other's locks: put it on a local disk, or use Redis or PostgreSQL"
        )


class File:
    """One connection to the file, opened when it is needed and again if the file was replaced."""

    def __init__(
        self, path: Path, clock: Clock, synchronous: str, timeout: float, boot: Callable[[], str], mounts: Path
    ) -> None:
        self.path = path
        self._clock = clock
        self._synchronous = synchronous
        self._timeout = timeout
        self._boot = boot
        self._mounts = mounts
        self._slot = Slot()
        self._identity: tuple[int, int] | None = None
        self._ahead = 0
        self._lasting: bool | None = None

    def now(self) -> int:
        """The file's clock in ms: the host's boot clock, and how far ahead of it the file began."""
        return int(self._clock.now() * 1000) + self._ahead

    def write(self, work: Callable[[sqlite3.Connection], T], given_up: GivenUp, lasting: bool = True) -> T:
        """Run `work` in one transaction that excludes every other writer. It is run again if the file was busy.

        What is not `lasting` outlives the process, but may be lost when the machine loses power.
        """

        def transact(db: sqlite3.Connection) -> T:
            self._sync(db, lasting)
            return _transaction(db, "BEGIN IMMEDIATE", work)

        return self._patiently(transact, given_up)

    def read(self, work: Callable[[sqlite3.Connection], T], given_up: GivenUp) -> T:
        """Run `work` on one unchanging view of the file."""
        return self._patiently(lambda db: _transaction(db, "BEGIN", work), given_up)

    def close(self) -> None:
        """Give the connection back."""
        with self._slot.turn:
            self._slot.close()

    def _connect(self) -> sqlite3.Connection:
        slot = self._slot
        if slot.db and self._identity != identity(self.path):
            _log.warning("the SQLite file %s was replaced or removed: opening the one that is there now", self.path)
            slot.close()
        if slot.db is None:
            refuse_network(self.path, self._mounts)
            slot.db = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
            try:
                self._prepare(slot.db)
            except BaseException:
                slot.close()
                raise
            self._identity = identity(self.path)
        return slot.db

    def _prepare(self, db: sqlite3.Connection) -> None:
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise BackendError(f"the SQLite file {str(self.path)!r} cannot use WAL (it stays at {mode!r})")
        self._lasting = None
        self._sync(db, lasting=True)
        _transaction(db, "BEGIN IMMEDIATE", self._found)

    def _sync(self, db: sqlite3.Connection, lasting: bool) -> None:
        if lasting is not self._lasting:
            relaxed = "NORMAL" if self._synchronous in ("FULL", "EXTRA") else self._synchronous
            db.execute(f"PRAGMA synchronous = {self._synchronous if lasting else relaxed}")
            self._lasting = lasting

    def _found(self, db: sqlite3.Connection) -> None:
        for statement in rows.SCHEMA:
            db.execute(statement)
        layout = rows.meta(db, "layout")
        if layout is not None and layout > _LAYOUT:
            raise BackendError(
                f"the SQLite file {str(self.path)!r} has layout {layout} and this release knows {_LAYOUT}:"
                " upgrade grelmicro-fastapi here"
            )
        boot, uptime = self._boot(), int(self._clock.now() * 1000)
        ahead = rows.meta(db, "ahead")
        if ahead is not None and rows.meta(db, "boot") == boot and rows.meta(db, "uptime") <= uptime:
            self._ahead = ahead
            return
        # A new file, or the machine was started anew: nobody who held anything then is alive. The clock goes on from
        # the latest instant that anybody was told.
        for key in rows.dead(db, _NEVER):
            # What cannot be read stays as it is: whoever asks for it is told.
            with contextlib.suppress(BackendError):
                kept = rows.load(db, key, 0)
                if kept.state.version <= VERSION:
                    step(kept.state, Vacate(), _NEVER)
                    rows.save(db, key, kept)
        self._ahead = max(int(self._clock.wall() * 1000), rows.latest(db)) - uptime
        for name, value in (("layout", _LAYOUT), ("boot", boot), ("uptime", uptime), ("ahead", self._ahead)):
            rows.put_meta(db, name, value)

    def _patiently(self, work: Callable[[sqlite3.Connection], T], given_up: GivenUp) -> T:
        until = time.monotonic() + self._timeout
        while True:
            try:
                with self._slot.turn:
                    return work(self._connect())
            except sqlite3.Error as error:
                if not busy(error):
                    # Whatever broke, the next call must not meet it again on this connection.
                    self.close()
                    raise BackendError(f"the SQLite file {str(self.path)!r} gave no verdict: {error}") from error
                if given_up() or time.monotonic() >= until:
                    raise BackendError(
                        f"the SQLite file {str(self.path)!r} was locked by another process for {self._timeout:g} s"
                    ) from error
            time.sleep(random.uniform(0.0003, 0.002))


def busy(error: sqlite3.Error) -> bool:
    """Is somebody else at the file, so that the same may succeed a moment later?"""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def identity(path: Path) -> tuple[int, int] | None:
    """Which file lies there, or `None`."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _transaction(db: sqlite3.Connection, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
    db.execute(begin)
    try:
        result = work(db)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return result
