"""Commands, replies and states as they travel between us and `redis.lua`. Does no I/O."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import NamedTuple, assert_never, cast

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
from grelmicro_fastapi.providers.redis_protocol import Word

SCRIPT = files("grelmicro_fastapi.providers").joinpath("redis.lua").read_text("utf-8")
SHA = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()

_VERDICTS = (
    *(Verdict.GRANTED, Verdict.HELD, Verdict.GONE, Verdict.BURIED),
    *(Verdict.MISMATCH, Verdict.LATE, Verdict.EARLY),
)


assert {*Poison} == {"clear", "keep", "set"}, "redis.lua compares these words"


def words(asks: Iterable[Ask]) -> list[Word]:
    """The arguments that say these commands, all of one key."""
    every: list[Word] = []
    for _, command, claim in asks:
        every.extend(_words(command, claim))
    return every


def _words(command: Command, claim: int) -> tuple[Word, ...]:
    match command:
        case Acquire(token, mode, ttl, seat, place, more, expect, note):
            wanted = "" if expect is None else expect
            return ("A", claim, token, mode.value, ttl, seat, place, int(more), wanted, note)
        case Release(token, min_hold, poison):
            return ("R", claim, token, min_hold, poison.value)
        case Renew(token, ttl):
            return ("N", claim, token, ttl)
        case Downgrade(token, ttl):
            return ("D", claim, token, ttl)
        case Undo(token):
            return ("U", claim, token)
        case Leave(seat):
            return ("L", claim, seat)
        case Advance(token, to):
            return ("T", claim, token, to)
        case Force():
            return ("F", claim)
        case Mend():
            return ("M", claim)
        case Vacate():
            return ("V", claim)
        case Purge(idle):
            return ("P", claim, idle)
        case _:
            assert_never(command)


def drop(idle: int) -> list[Word]:
    """Drop the name if the law's Purge allows it."""
    return ["X", 0, idle]


LOOK: Sequence[Word] = ("?",)
"""Read the state."""


class Answered(NamedTuple):
    """What the script returned. `newer` is the version of a state that was written by a newer law, or 0."""

    replies: list[Reply]
    unheard: int
    newer: int


def answered(answer: object) -> Answered:
    """Read what the script returned after commands."""
    first, *rows = cast("list[object]", answer)
    unheard = cast("int", first)
    return Answered([_reply(cast("list[int]", row)) for row in rows], max(0, unheard), max(0, -unheard))


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
        seats=[*_seats(fields.get(b"seats", b""))],
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


def _seats(packed: bytes) -> Iterator[Seat]:
    while packed:
        head, until, called, grace, size, rest = packed.split(b" ", 5)
        seat, packed = rest[: int(size)].decode(), rest[int(size) :]
        yield Seat(seat, Mode(head[:1].decode()), int(until), head[1:] == b"1", int(called), int(grace))


def wake(payload: bytes, prefix: str) -> Wake:
    """What was published for a seat of ours."""
    after, size, rest = payload.split(b" ", 2)
    seat, key = rest[: int(size)].decode(), rest[int(size) :].decode()
    return Wake(key.removeprefix(prefix), seat, int(after))
