"""What goes to PostgreSQL and what comes back: commands, replies and states as JSON."""

import json
from collections.abc import Sequence
from typing import Any, get_args

from grelmicro_fastapi.coordination.state import (
    VERSION,
    Command,
    Mode,
    Purge,
    Reply,
    Seat,
    State,
    Vacate,
    Verdict,
    Writer,
)
from grelmicro_fastapi.coordination.store import Answer, Ask, Snapshot, Wake
from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers.base import newer

_VERDICTS = {verdict.value: verdict for verdict in Verdict}
_NONE: tuple[tuple[str, int], ...] = ()


class Letter:
    """Asks as one call takes them: grouped by key, for a state is loaded and saved once however much is asked of it."""

    def __init__(self, asks: Sequence[Ask]) -> None:
        self._asks = asks
        self._places: dict[str, list[int]] = {}
        for place, ask in enumerate(asks):
            self._places.setdefault(ask.key, []).append(place)
        self.keys = list(self._places)
        """Each key once."""
        groups = self._places.values()
        self.body = json.dumps([[_words(asks[place]) for place in group] for group in groups])
        """What is asked of each of them, as JSON."""

    def answers(self, reply: str) -> list[Answer]:
        """The answers in the order of the asks."""
        told: list[list[Any]] = json.loads(reply)
        answers: list[Answer] = [_NOTHING] * len(self._asks)
        order = [place for group in self._places.values() for place in group]
        for place, (verdict, fence, poisoned, retry, seated, wakes) in zip(order, told, strict=True):
            if verdict == Verdict.NEWER:
                answers[place] = newer(self._asks[place].key, fence)
                continue
            rung = tuple((seat, after) for seat, after in wakes) if wakes else _NONE
            answers[place] = Reply(_VERDICTS[verdict], fence, poisoned, retry, seated, rung)
        return answers


_NOTHING = BackendError("the store left this ask out")


def drop(keys: Sequence[str], idle: int) -> str:
    """Ask to drop each of the keys if it may be purged."""
    return json.dumps([[{**_words(Ask(key, Purge(idle), 0)), "op": "drop"}] for key in keys])


def burial(keys: Sequence[str], claim: int) -> list[Ask]:
    """Ask to bury what is dead in each of the keys."""
    return [Ask(key, Vacate(), claim) for key in keys]


def snapshot(key: str, reply: str) -> Snapshot:
    """One state and the clock. Raises `BackendError` if a newer release wrote it."""
    told: dict[str, Any] = json.loads(reply)
    row: dict[str, Any] | None = told["lock"]
    if row is None:
        return Snapshot(State(told["floor"]), told["now"])
    if row["version"] > VERSION:
        raise newer(key, row["version"])
    writer = None
    if row["writer"] is not None:
        writer = Writer(row["writer"], row["since"], row["until"], row["note"], row["found"])
    holders: list[tuple[str, bool, int]] = told["holders"] or []
    state = State(
        fence=row["fence"],
        poisoned=row["poisoned"],
        writer=writer,
        readers={token: until for token, grave, until in holders if not grave},
        seats=[_seat(**seat) for seat in row["seats"]],
        graves={token: until for token, grave, until in holders if grave},
        claimant=row["claimant"],
        touched=row["touched"],
    )
    return Snapshot(state, told["now"])


def wake(payload: str) -> Wake:
    """What a notification says."""
    key, seat, after = json.loads(payload)
    return Wake(key, seat, after)


def _seat(id: str, mode: str, until: int, turn: bool, called: int, grace: int) -> Seat:
    return Seat(id, Mode(mode), until, turn, called, grace)


def _words(ask: Ask) -> dict[str, Any]:
    said: dict[str, Any] = {"op": _NAMES[type(ask.command)], "claim": ask.claim, **ask.command._asdict()}
    if (said.get("expect") or 0) > _LARGEST:
        # No fence is as large, and the server has no such number: it would refuse it as an error, again and again.
        said["expect"] = _NO_FENCE
    return said


_LARGEST, _NO_FENCE = 2**63 - 1, -1

_NAMES: dict[type[Command], str] = {kind: kind.__name__.lower() for kind in get_args(Command)}
