"""States in a SQLite file, shared by the processes of one host."""

import secrets
import sqlite3
import weakref
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.coordination.rules import step
from grelmicro_fastapi.coordination.state import (
    CLAIM,
    VERSION,
    Acquire,
    Advance,
    Command,
    Force,
    Leave,
    Mend,
    Mode,
    Purge,
    Reply,
    Vacate,
    Verdict,
)
from grelmicro_fastapi.coordination.store import Answer, Ask, Scope, Snapshot, Wake, Woken
from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers import sqlite_rows as rows
from grelmicro_fastapi.providers.base import newer
from grelmicro_fastapi.providers.sqlite_file import MOUNTS, File, GivenUp, boot_id
from grelmicro_fastapi.providers.sqlite_threads import Desk, Lookout

T = TypeVar("T")

_PAGE = 500
"""Keys of one transaction when all are gone through: others get their turn in between."""


class SqliteStore:
    """One loop's connection to the file.

    `synchronous` is SQLite's; `timeout` how many seconds a call waits for other processes. `boot` names the present
    run of the machine, and `mounts` is its mount table.
    """

    scope = Scope.HOST
    place = 3.0

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        synchronous: str = "FULL",
        timeout: float = 5.0,
        boot: Callable[[], str] = boot_id,
        mounts: Path = MOUNTS,
    ) -> None:
        self.channel = secrets.token_hex(8)
        self._file = File(path, clock, synchronous, timeout, boot, mounts)
        self._lookout = Lookout(path, self._file.now)
        self._woken: Woken | None = None
        self._desk: Desk | None = None
        self._dismissal: Callable[[], object] | None = None

    async def open(self) -> None:
        """Open the file, and make its tables if they are missing."""
        if self._desk is None:
            self._desk = Desk()
            # A store that is dropped without being closed must not leave its thread behind.
            self._dismissal = weakref.finalize(self, self._desk.dismiss, self._file.close)
        await self._call(lambda given_up: self._file.read(lambda db: None, given_up))

    async def close(self) -> None:
        """Close the file. What was already asked for is still done."""
        desk, self._desk = self._desk, None
        if desk and self._dismissal:
            self._dismissal()
            await desk.ended()

    def lane(self, key: str) -> Hashable:
        """Anything may travel together."""
        return None

    async def apply(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        """Let the law advance each key, in one transaction and one hop to the thread."""
        lasting = any(_lasts(ask.command) for ask in asks)
        answers, changes = await self._write(lambda db: _apply(db, asks, self._file.now()), lasting)
        for (key, command, _), answer in zip(asks, answers, strict=True):
            if isinstance(answer, Reply):
                self._watch(key, command, answer, changes[key])
        self._tell(asks, answers, changes)
        return answers

    async def peek(self, key: str) -> Snapshot:
        """Read one state."""

        def look(db: sqlite3.Connection) -> Snapshot:
            state = rows.load(db, key, 0).state
            return Snapshot(state, self._file.now())

        return await self._call(lambda given_up: self._file.read(look, given_up))

    async def keys(self, prefix: str) -> AsyncIterator[str]:
        """Every key kept that starts with `prefix`."""
        after: str | None = None
        while True:

            def page(db: sqlite3.Connection, after: str | None = after) -> list[str]:
                return rows.keys(db, prefix, after, _PAGE)

            found = await self._call(partial(self._file.read, page))
            for key in found:
                yield key
            if len(found) < _PAGE:
                return
            after = found[-1]

    async def listen(self, woken: Woken) -> None:
        """Report wakes for this store's seats until cancelled."""
        self._woken = woken
        try:
            await self._lookout.run(woken)
        finally:
            self._woken = None

    async def vacate(self) -> int:
        """Bury what is dead."""
        return await self._sweep(Vacate(), lambda db: rows.dead(db, self._file.now()))

    async def purge(self, idle: float) -> int:
        """Drop names idle for so many seconds."""
        length = int(idle * 1000)
        return await self._sweep(Purge(length), lambda db: rows.idle(db, self._file.now() - length))

    def _drop(self, asks: Sequence[Ask], db: sqlite3.Connection) -> tuple[list[Answer], dict[str, int]]:
        return _apply(db, asks, self._file.now(), drop=True)

    async def _sweep(self, command: Command, find: Callable[[sqlite3.Connection], list[str]]) -> int:
        found = await self._call(lambda given_up: self._file.read(find, given_up))
        count = 0
        for start in range(0, len(found), _PAGE):
            asks = [Ask(key, command, CLAIM) for key in found[start : start + _PAGE]]
            answers, changes = await self._write(partial(self._drop, asks))
            self._tell(asks, answers, changes)
            count += sum(isinstance(answer, Reply) and answer.verdict is Verdict.GRANTED for answer in answers)
        return count

    async def _write(self, work: Callable[[sqlite3.Connection], T], lasting: bool = True) -> T:
        return await self._call(lambda given_up: self._file.write(work, given_up, lasting))

    async def _call(self, job: Callable[[GivenUp], T]) -> T:
        if self._desk is None:
            raise BackendError(f"the SQLite file {str(self._file.path)!r} is not open here")
        return await self._desk.call(job)

    def _watch(self, key: str, command: Command, reply: Reply, changes: int) -> None:
        match command:
            case Acquire(mode=mode, seat=seat) if reply.seated:
                self._lookout.expect(key, seat, mode, changes)
            case Acquire(seat=seat) if seat and reply.verdict is Verdict.GRANTED:
                self._lookout.forget(key, seat)
            case Leave(seat):
                self._lookout.forget(key, seat)
            case _:
                pass

    def _tell(self, asks: Sequence[Ask], answers: Sequence[Answer], changes: dict[str, int]) -> None:
        """Wake this store's own seats at once. Other stores see the change in the file."""
        if self._woken is None:
            return
        for ask, answer in zip(asks, answers, strict=True):
            for seat, after in answer.wakes if isinstance(answer, Reply) else ():
                if seat.rpartition("/")[0] == self.channel:
                    self._woken(Wake(ask.key, seat, after))
        for key, count in changes.items():
            self._lookout.told(key, count)


def _apply(
    db: sqlite3.Connection, asks: Sequence[Ask], now: int, drop: bool = False
) -> tuple[list[Answer], dict[str, int]]:
    loaded: dict[str, rows.Kept] = {}
    answers: list[Answer] = []
    for key, command, claim in asks:
        kept = loaded.get(key)
        if kept is None:
            try:
                kept = loaded[key] = rows.load(db, key, now)
            except BackendError as error:
                answers.append(error)
                continue
        reply = step(kept.state, command, now, claim)
        if reply.verdict is Verdict.NEWER:
            answers.append(newer(key, kept.state.version))
            continue
        answers.append(reply)
        if drop and isinstance(command, Purge) and reply.verdict is Verdict.GRANTED:
            rows.drop(db, key, kept.state.fence)
            del loaded[key]
    for key, kept in loaded.items():
        if kept.state.version <= VERSION:
            rows.save(db, key, kept)
    return answers, {key: kept.changes for key, kept in loaded.items()}


def _lasts(command: Command) -> bool:
    """Must it survive a power cut? Fences and the operator's word must; a lease is dead after one anyway."""
    match command:
        case Acquire(mode=mode):
            return mode is Mode.WRITE
        case Advance() | Force() | Mend() | Purge():
            return True
        case _:
            return False
