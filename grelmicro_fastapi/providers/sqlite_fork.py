"""A fork must not carry a connection along.

SQLite keeps its locks for the whole process. A child that inherits an open connection believes that it holds locks
which only its parent holds, and spoils the file. So a fork waits until no statement runs, and the child closes what
it inherited before it does anything else. It may then open the file anew.
"""

import contextlib
import os
import sqlite3
import threading
import weakref


class Slot:
    """A place for one connection. Whoever uses it holds `turn`."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.db: sqlite3.Connection | None = None
        with _forking:
            _slots.add(self)

    def close(self) -> None:
        """Close it, if it is open."""
        db, self.db = self.db, None
        if db:
            db.close()


_forking = threading.Lock()
_slots: weakref.WeakSet[Slot] = weakref.WeakSet()
_held: list[Slot] = []


def _before() -> None:
    _forking.acquire()
    _held.extend(_slots)
    for slot in _held:
        slot.turn.acquire()


def _after() -> None:
    while _held:
        _held.pop().turn.release()
    _forking.release()


def _in_child() -> None:
    for slot in _held:
        with contextlib.suppress(sqlite3.Error):
            slot.close()
    _after()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
