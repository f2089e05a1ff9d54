"""How a state lies in the tables: a row for the lock, and one for each reader, seat and grave.

Everything here runs inside a transaction that the caller began, on the connection's own thread.
"""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from grelmicro_fastapi.coordination.state import VERSION, Mode, Seat, State, Writer
from grelmicro_fastapi.errors import BackendError

SCHEMA = (
    """CREATE TABLE IF NOT EXISTS grelmicro_meta (
        name TEXT PRIMARY KEY, value ANY NOT NULL
    ) WITHOUT ROWID""",
    # `version` is the law's. `changes` grows with every change of a state, so that waiters see which one changed.
    # `crowd` counts the rows in grelmicro_holder: most states have none, and need no second look.
    """CREATE TABLE IF NOT EXISTS grelmicro_lock (
        key TEXT PRIMARY KEY, version INTEGER NOT NULL, fence INTEGER NOT NULL, poisoned INTEGER NOT NULL,
        token TEXT, since INTEGER NOT NULL, until INTEGER NOT NULL, note TEXT NOT NULL, took INTEGER NOT NULL,
        claimant TEXT NOT NULL, touched INTEGER NOT NULL, crowd INTEGER NOT NULL, changes INTEGER NOT NULL
    ) WITHOUT ROWID""",
    # `kind` is r(eader), s(eat) or g(rave). `place` orders the seats.
    """CREATE TABLE IF NOT EXISTS grelmicro_holder (
        key TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, until INTEGER NOT NULL, place INTEGER NOT NULL,
        mode TEXT NOT NULL, turn INTEGER NOT NULL, called INTEGER NOT NULL, grace INTEGER NOT NULL,
        PRIMARY KEY (key, kind, id)
    ) WITHOUT ROWID""",
)

_LOCK = "version, fence, poisoned, token, since, until, note, took, claimant, touched, crowd, changes"
_HOLDER = "kind, id, until, place, mode, turn, called, grace"

_Lock = tuple[Any, ...]
_Holders = dict[tuple[str, str], tuple[int, int, str, int, int, int]]


@dataclass(slots=True)
class Kept:
    """A state, and what its rows were when it was loaded."""

    state: State
    changes: int
    row: _Lock
    holders: _Holders = field(default_factory=_Holders)


def load(db: sqlite3.Connection, key: str, now: int) -> Kept:
    """Read one state. A name that is not kept starts at the floor of those dropped.

    Raises `BackendError` if the rows make no state.
    """
    row = db.execute(f"SELECT {_LOCK} FROM grelmicro_lock WHERE key = ?", (key,)).fetchone()
    if row is None:
        # Counted from the clock, so that a name which was dropped and comes back never shows an old count.
        state = State(meta(db, "floor") or 0)
        return Kept(state, now, _lock(state, 0))
    version, fence, poisoned, *_, claimant, touched, _, changes = row
    state = State(fence, bool(poisoned), claimant=claimant, touched=touched, version=version)
    kept = Kept(state, changes, row[:-1])
    if version > VERSION:
        return kept
    try:
        _fill(db, key, kept)
    except (TypeError, ValueError) as error:
        raise BackendError(f"the state of {key!r} in the SQLite file is damaged: {error}") from error
    return kept


def save(db: sqlite3.Connection, key: str, kept: Kept) -> bool:
    """Write what changed since the load. Writes nothing if nothing did, and says whether it wrote."""
    state = kept.state
    holders = _holders(kept) if state.readers or state.seats or state.graves else {}
    row = _lock(state, len(holders))
    if row == kept.row and holders == kept.holders:
        return False
    if holders != kept.holders:
        gone = [(key, *id) for id in kept.holders.keys() - holders.keys()]
        db.executemany("DELETE FROM grelmicro_holder WHERE key = ? AND kind = ? AND id = ?", gone)
        new = [(key, *id, *values) for id, values in holders.items() if kept.holders.get(id) != values]
        db.executemany("INSERT OR REPLACE INTO grelmicro_holder VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", new)
    kept.changes += 1
    values = (key, *row, kept.changes)
    db.execute("INSERT OR REPLACE INTO grelmicro_lock VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    kept.row, kept.holders = row, holders
    return True


def drop(db: sqlite3.Connection, key: str, fence: int) -> None:
    """Forget an idle name. Whatever comes back starts above the fence it had."""
    db.execute("DELETE FROM grelmicro_lock WHERE key = ?", (key,))
    db.execute("DELETE FROM grelmicro_holder WHERE key = ?", (key,))
    put_meta(db, "floor", max(meta(db, "floor") or 0, fence))


def keys(db: sqlite3.Connection, prefix: str, after: str | None, limit: int) -> list[str]:
    """Up to `limit` keys that start with `prefix`, in order, those behind `after`."""
    start, sign = (prefix, ">=") if after is None else (after, ">")
    query = f"SELECT key FROM grelmicro_lock WHERE key {sign} ? ORDER BY key LIMIT ?"
    return [key for (key,) in db.execute(query, (start, limit)) if key.startswith(prefix)]


def dead(db: sqlite3.Connection, now: int) -> list[str]:
    """The keys in which something has ended."""
    query = """SELECT key FROM grelmicro_lock WHERE token IS NOT NULL AND until <= ?
        UNION SELECT key FROM grelmicro_holder WHERE until <= ?"""
    return [key for (key,) in db.execute(query, (now, now))]


def idle(db: sqlite3.Connection, since: int) -> list[str]:
    """The keys that nobody touched since then."""
    return [key for (key,) in db.execute("SELECT key FROM grelmicro_lock WHERE touched <= ?", (since,))]


def latest(db: sqlite3.Connection) -> int:
    """The latest instant that any state was changed at, or any tick claimed for."""
    query = "SELECT max(touched), max(iif(claimant = '', 0, fence)) FROM grelmicro_lock"
    return max(instant or 0 for instant in db.execute(query).fetchone())


def changes(db: sqlite3.Connection, wanted: list[str]) -> Iterator[tuple[str, int]]:
    """How often these states have changed; those not kept are left out."""
    marks = ", ".join("?" * len(wanted))
    return iter(db.execute(f"SELECT key, changes FROM grelmicro_lock WHERE key IN ({marks})", wanted).fetchall())


def meta(db: sqlite3.Connection, name: str) -> Any:
    """A fact about the whole file, or `None`."""
    row = db.execute("SELECT value FROM grelmicro_meta WHERE name = ?", (name,)).fetchone()
    return row and row[0]


def put_meta(db: sqlite3.Connection, name: str, value: object) -> None:
    """Note a fact about the whole file."""
    db.execute("INSERT OR REPLACE INTO grelmicro_meta VALUES (?, ?)", (name, value))


def _fill(db: sqlite3.Connection, key: str, kept: Kept) -> None:
    state = kept.state
    token, since, until, note, took, _, _, crowd = kept.row[3:]
    if token is not None:
        state.writer = Writer(token, since, until, note, bool(took))
    if not crowd:
        return
    query = f"SELECT {_HOLDER} FROM grelmicro_holder WHERE key = ? ORDER BY kind, place"
    for kind, holder, until, place, mode, turn, called, grace in db.execute(query, (key,)):
        kept.holders[kind, holder] = (until, place, mode, turn, called, grace)
        if kind == "r":
            state.readers[holder] = until
        elif kind == "g":
            state.graves[holder] = until
        else:
            state.seats.append(Seat(holder, Mode(mode), until, bool(turn), called, grace))


def _lock(state: State, crowd: int) -> _Lock:
    writer = state.writer
    held = (writer.token, writer.since, writer.until, writer.note, int(writer.poisoned)) if writer else _NOBODY
    return (state.version, state.fence, int(state.poisoned), *held, state.claimant, state.touched, crowd)


_NOBODY = (None, 0, 0, "", 0)


def _holders(kept: Kept) -> _Holders:
    state = kept.state
    holders: _Holders = {("r", token): (until, 0, "", 0, 0, 0) for token, until in state.readers.items()}
    holders.update({("g", token): (until, 0, "", 0, 0, 0) for token, until in state.graves.items()})
    last = 0
    for seat in state.seats:
        # A seat that was given up and taken anew stands at the end: its old place does not count.
        old = kept.holders.get(("s", seat.id))
        last = old[1] if old and old[1] > last else last + 1
        holders["s", seat.id] = (seat.until, last, seat.mode.value, int(seat.turn), seat.called, seat.grace)
    return holders
