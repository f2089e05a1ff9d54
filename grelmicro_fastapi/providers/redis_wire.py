"""Commands, replies and states as they travel between us and `redis.lua`. Does no I/O."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import cast

from grelmicro_fastapi.coordination.state import (
    Acquire,
    Advance,
    Command,
    Downgrade,
    Force,
    Leave,
    Mend,
    Mode,
    Poison,
    Purge,
    Release,
    Renew,
    Reply,
    Seat,
    State,
    Undo,
    Vacate,
    Verdict,
    Writer,
)
from grelmicro_fastapi.coordination.store import Ask, Snapshot, Wake

Word = str | int | bytes
"""One argument of a command."""

SCRIPT = files("grelmicro_fastapi.providers").joinpath("redis.lua").read_text("utf-8")
SHA = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()

_VERDICTS = (
    *(Verdict.GRANTED, Verdict.HELD, Verdict.GONE, Verdict.BURIED),
    *(Verdict.MISMATCH, Verdict.LATE, Verdict.EARLY, Verdict.NEWER),
)


def _acquire(ask: Acquire, claim: int) -> tuple[Word, ...]:
    expect = "" if ask.expect is None else ask.expect
    return (
        *("A", claim, ask.token, ask.mode.value, ask.ttl, ask.seat),
        *(ask.place, int(ask.more), expect, ask.note),
    )


_WORDS: Mapping[type[Command], Callable[..., tuple[Word, ...]]] = {
    Acquire: _acquire,
    Renew: lambda ask, claim: ("N", claim, ask.token, ask.ttl),
    Downgrade: lambda ask, claim: ("D", claim, ask.token, ask.ttl),
    Release: lambda ask, claim: ("R", claim, ask.token, ask.min_hold, ask.poison.value),
    Undo: lambda ask, claim: ("U", claim, ask.token),
    Leave: lambda ask, claim: ("L", claim, ask.seat),
    Advance: lambda ask, claim: ("T", claim, ask.token, ask.to),
    Force: lambda ask, claim: ("F", claim),
    Mend: lambda ask, claim: ("M", claim),
    Vacate: lambda ask, claim: ("V", claim),
    Purge: lambda ask, claim: ("P", claim, ask.idle),
}

assert {*Poison} == {"clear", "keep", "set"}, "redis.lua compares these words"


def words(asks: Iterable[Ask]) -> list[Word]:
    """The arguments that say these commands, all of one key."""
    said: list[Word] = []
    for ask in asks:
        said.extend(_WORDS[type(ask.command)](ask.command, ask.claim))
    return said


def drop(idle: int) -> list[Word]:
    """Drop the name if the law's Purge allows it."""
    return ["X", 0, idle]


LOOK: Sequence[Word] = ("?",)
"""Read the state."""


def replies(answer: object) -> tuple[list[Reply], int]:
    """What the script returned: a reply for each command, and how many wakes could not be published."""
    unheard, *rows = cast("list[object]", answer)
    return [_reply(cast("list[int]", row)) for row in rows], cast("int", unheard)


def _reply(row: "list[int]") -> Reply:
    verdict, fence, poisoned, retry, seated = row[:5]
    if len(row) == 5:
        return Reply(_VERDICTS[verdict - 1], fence, poisoned == 1, retry, seated == 1)
    seats = [cast("bytes", seat).decode() for seat in row[5::2]]
    return Reply(
        _VERDICTS[verdict - 1], fence, poisoned == 1, retry, seated == 1, tuple(zip(seats, row[6::2], strict=True))
    )


def snapshot(answer: object) -> Snapshot:
    """What the script returned when asked to look."""
    now, floor, flat = cast("tuple[int, bytes | None, list[bytes]]", answer)
    return Snapshot(_state(dict(zip(flat[::2], flat[1::2], strict=True)), int(floor or 0)), now)


def _state(fields: Mapping[bytes, bytes], floor: int) -> State:
    if not fields:
        return State(floor)
    return State(
        fence=int(fields.get(b"fence", 0)),
        poisoned=fields.get(b"poison") == b"1",
        writer=_writer(fields.get(b"writer")),
        readers=_leases(fields, b"r:"),
        seats=[_seat(line) for line in fields.get(b"seats", b"").split(b"\n")[:-1]],
        graves=_leases(fields, b"g:"),
        claimant=fields.get(b"claimant", b"").decode(),
        touched=int(fields.get(b"touched", 0)),
        version=int(fields[b"v"]),
    )


def _leases(fields: Mapping[bytes, bytes], kind: bytes) -> dict[str, int]:
    return {field[2:].decode(): int(until) for field, until in fields.items() if field.startswith(kind)}


def _writer(packed: bytes | None) -> Writer | None:
    if packed is None:
        return None
    since, until, poisoned, size, rest = packed.split(b" ", 4)
    token, note = rest[: int(size)].decode(), rest[int(size) :].decode()
    return Writer(token, int(since), int(until), note, poisoned == b"1")


def _seat(line: bytes) -> Seat:
    head, until, called, grace, seat = line.split(b" ", 4)
    mode = Mode(head[:1].decode())
    return Seat(seat.decode(), mode, int(until), head[1:] == b"1", int(called), int(grace))


def wake(payload: bytes, prefix: str) -> Wake:
    """What was published for a seat of ours."""
    after, seat, key = payload.decode().split(" ", 2)
    return Wake(key.removeprefix(prefix), seat, int(after))
