"""The two threads of a store: one that owns the connection, and one that looks out while somebody waits.

Neither keeps the process alive, and neither is ever interrupted: what a cancelled caller asked for ends by itself.
"""

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from grelmicro_fastapi.coordination.state import Mode, State
from grelmicro_fastapi.coordination.store import Wake, Woken
from grelmicro_fastapi.coordination.turns import outlook
from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers import sqlite_rows as rows
from grelmicro_fastapi.providers.sqlite_file import GivenUp, identity
from grelmicro_fastapi.providers.sqlite_fork import Slot

T = TypeVar("T")

_PAUSE = 0.004
"""Seconds between two looks."""
_RETRY = 0.25
"""Seconds before a look-out that failed tries again."""


class _Job(NamedTuple):
    future: "asyncio.Future[Any]"
    work: Callable[[GivenUp], Any]


_Jobs = SimpleQueue[_Job | Callable[[], object]]


class Desk:
    """One thread that does one job after the other."""

    def __init__(self) -> None:
        self._jobs: _Jobs = SimpleQueue()
        self._process = os.getpid()
        self._ended = asyncio.Event()
        tell = _teller(asyncio.get_running_loop())
        args = (self._jobs, partial(tell, self._ended.set))
        threading.Thread(target=_work, args=args, name="grelmicro-sqlite", daemon=True).start()

    async def call(self, job: Callable[[GivenUp], T]) -> T:
        """Do this in the thread. A caller who is cancelled leaves; the job is told that it was given up."""
        if os.getpid() != self._process:
            raise BackendError("this process was forked while the store was open: open the provider again in the child")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put(_Job(future, job))
        return await future

    def dismiss(self, last: Callable[[], object]) -> None:
        """Let the thread end once it has done what it was given, and this last thing."""
        self._jobs.put(last)

    async def ended(self) -> None:
        """Wait until a thread that was dismissed has ended."""
        await self._ended.wait()


def _work(jobs: _Jobs, ended: Callable[[], object]) -> None:
    while isinstance(asked := jobs.get(), _Job):
        future, job = asked
        # Nobody waits for it and nothing has begun: then it need not be.
        if future.cancelled():
            continue
        try:
            answer, error = job(future.cancelled), None
        except BaseException as raised:
            answer, error = None, raised
        _teller(future.get_loop())(_settle, future, answer, error)
        # What was asked for must not live on while nothing is.
        del asked, future, job, answer, error
    asked()
    ended()


def _teller(loop: asyncio.AbstractEventLoop) -> Callable[..., None]:
    def tell(callback: Callable[..., object], *args: object) -> None:
        # A loop that is closed has nobody left to tell.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(callback, *args)

    return tell


def _settle(future: "asyncio.Future[Any]", answer: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)


class Lookout:
    """Watches the states that this store's seats wait for, and reads only those that changed."""

    def __init__(self, path: Path, now: Callable[[], int]) -> None:
        self._path = path
        self._now = now
        self._bell = threading.Condition()
        self._seats: dict[str, dict[str, Mode]] = {}
        self._seen: dict[str, int] = {}
        self._fresh = False
        self._ended = False

    def expect(self, key: str, seat: str, mode: Mode, changes: int) -> None:
        """This seat waits, and has been told of the state up to this change."""
        with self._bell:
            self._seats.setdefault(key, {})[seat] = mode
            self._seen[key] = changes
            # The change that it waits for may have come before we were told to watch for it.
            self._fresh = True
            self._bell.notify()

    def told(self, key: str, changes: int) -> None:
        """Whoever waits here for this state has been told of it up to this change."""
        with self._bell:
            if key in self._seats:
                self._seen[key] = changes

    def forget(self, key: str, seat: str) -> None:
        """This seat waits no more."""
        with self._bell:
            seats = self._seats.get(key)
            if seats and seats.pop(seat, None) and not seats:
                del self._seats[key], self._seen[key]

    async def run(self, woken: Woken) -> None:
        """Look out until cancelled."""
        loop = asyncio.get_running_loop()
        tell, ended = _teller(loop), asyncio.Event()

        def watch() -> None:
            self._watch(partial(tell, woken))
            tell(ended.set)

        self._ended = False
        threading.Thread(target=watch, name="grelmicro-sqlite-lookout", daemon=True).start()
        try:
            await loop.create_future()
        finally:
            with self._bell:
                self._ended = True
                self._bell.notify()
            await ended.wait()

    def _watch(self, tell: Woken) -> None:
        slot, file, version = Slot(), None, None
        while not self._park():
            with self._bell:
                fresh, self._fresh = self._fresh, False
            with slot.turn:
                try:
                    if slot.db and file != identity(self._path):
                        slot.close()
                    if slot.db is None:
                        slot.db, file = _connect(self._path), identity(self._path)
                        # What changed until now changed unseen.
                        tell(None)
                    (latest,) = slot.db.execute("PRAGMA data_version").fetchone()
                    if fresh or latest != version:
                        self._look(slot.db, tell)
                    version = latest
                    continue
                except sqlite3.Error:
                    slot.close()
            with self._bell:
                self._fresh = True
                self._bell.wait(_RETRY)
        with slot.turn:
            slot.close()

    def _park(self) -> bool:
        """Sleep while nobody waits, else until the next look. True at the end."""
        with self._bell:
            while not self._seats and not self._ended:
                self._bell.wait()
            if not self._fresh and not self._ended:
                self._bell.wait(_PAUSE)
            return self._ended

    def _look(self, db: sqlite3.Connection, tell: Woken) -> None:
        with self._bell:
            seen = dict(self._seen)
        found = dict(rows.changes(db, list(seen)))
        for key in [key for key, changes in seen.items() if found.get(key) != changes]:
            kept = _read(db, key, self._now())
            now = self._now()
            with self._bell:
                # What was told meanwhile is newer than what was read.
                if self._seen.get(key, 0) > kept.changes:
                    continue
                waiting = dict(self._seats.get(key, {}))
                if waiting:
                    self._seen[key] = kept.changes
            seated = {seat.id for seat in kept.state.seats}
            for seat, mode in waiting.items():
                if seat in seated:
                    tell(Wake(key, seat, outlook(kept.state, seat, mode, now)))
                    continue
                # Its place ran out. It learns that by asking, and is watched again when it has a new one.
                self.forget(key, seat)
                tell(Wake(key, seat, 0))


def _read(db: sqlite3.Connection, key: str, now: int) -> rows.Kept:
    db.execute("BEGIN")
    try:
        return rows.load(db, key, now)
    except BackendError:
        # It cannot be read. Whoever waits for it is told that when they ask.
        return rows.Kept(State(), now, ())
    finally:
        db.execute("COMMIT")


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA query_only = ON")
    return db
