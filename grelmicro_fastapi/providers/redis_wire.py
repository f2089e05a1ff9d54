"""Commands, replies and states as they travel between us and `redis.lua`. Does no I/O."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from struct import Struct
from typing import Any, NamedTuple, assert_never, cast

from grelmicro_fastapi.coordination.state import (
    VERSION,
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
    made_reply,
    maker,
)
from grelmicro_fastapi.coordination.store import Ask, Snapshot, Wake
from grelmicro_fastapi.providers.redis_protocol import Word

SCRIPT = files("grelmicro_fastapi.providers").joinpath("redis.lua").read_text("utf-8")
SHA = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()

_HEAD, _LEASES = Struct(">BddH"), Struct(">IIdBdB")
_WRITER, _NOTE = Struct(">ddBH"), Struct(">I")
_SEAT = Struct(">cBdddH")

_VERDICTS = {verdict.value.encode(): verdict for verdict in Verdict}
_MODES = {mode: mode.value for mode in Mode}
_POISONS = {poison: poison.value for poison in Poison}

assert {*Poison} == {"clear", "keep", "set"}, "redis.lua compares these words"


def words(asks: Iterable[Ask]) -> list[Word]:
    """The arguments that say these commands, all of one key."""
    every: list[Word] = []
    for _, command, claim in asks:
        every.extend(_words(command, claim))
    return every


def _words(command: Command, claim: int) -> tuple[Word, ...]:
    # The usual ones by class, for a pattern costs several times as much.
    if isinstance(command, Acquire):
        token, mode, ttl, seat, place, more, expect, note = command
        wanted = "" if expect is None else expect
        return ("A", claim, token, _MODES[mode], ttl, seat, place, 1 if more else 0, wanted, note)
    if isinstance(command, Release):
        token, min_hold, poison = command
        return ("R", claim, token, min_hold, _POISONS[poison])
    match command:
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


_made_answered = maker(Answered)


def answered(answer: object) -> Answered:
    """Read what the script returned after commands."""
    first, *rows = cast("list[Any]", answer)
    return _made_answered(([_reply(row) for row in rows], max(0, first), max(0, -first)))


def _reply(row: list[Any]) -> Reply:
    verdict, fence, poisoned, retry, seated = row[:5]
    wakes: tuple[tuple[str, int], ...] = ()
    if len(row) > 5:
        wakes = tuple((seat.decode(), after) for seat, after in zip(row[5::2], row[6::2], strict=True))
    return made_reply((_VERDICTS[verdict], fence, poisoned == 1, retry, seated == 1, wakes))


def snapshot(answer: object) -> Snapshot:
    """What the script returned when asked to look."""
    now, floor, flat = cast("tuple[int, bytes | None, list[bytes]]", answer)
    return Snapshot(_kept(dict(zip(flat[::2], flat[1::2], strict=True)), int(floor or 0)), now)


def touched(version: bytes | None, packed: bytes | None) -> bool:
    """Is there a lock of which more is left than its fence?"""
    if version is None or packed is None:
        return False
    if int(version) > VERSION:
        return True
    state = _state(packed)
    return bool(state.touched or state.seats)


def _kept(fields: Mapping[bytes, bytes], floor: int) -> State:
    if not fields:
        return State(floor)
    version = int(fields[b"v"])
    if version > VERSION:
        return State(version=version)
    state = _state(fields[b"state"])
    state.readers, state.graves = _leases(fields, b"r:"), _leases(fields, b"g:")
    return state


def _leases(fields: Mapping[bytes, bytes], kind: bytes) -> dict[str, int]:
    return {field[2:].decode(): int(until) for field, until in fields.items() if field.startswith(kind)}


def _state(packed: bytes) -> State:
    """What the script packed. `redis.lua` says what there is."""
    poisoned, fence, touched, size = _HEAD.unpack_from(packed)
    claimant, at = _text(packed, _HEAD.size, size)
    *_, writes = _LEASES.unpack_from(packed, at)
    at += _LEASES.size
    writer = None
    if writes:
        since, until, found, size = _WRITER.unpack_from(packed, at)
        token, at = _text(packed, at + _WRITER.size, size)
        (size,) = _NOTE.unpack_from(packed, at)
        note, at = _text(packed, at + _NOTE.size, size)
        writer = Writer(token, int(since), int(until), note, bool(found))
    state = State(int(fence), bool(poisoned), writer, claimant=claimant, touched=int(touched))
    while at < len(packed):
        mode, turn, until, called, grace, size = _SEAT.unpack_from(packed, at)
        seat, at = _text(packed, at + _SEAT.size, size)
        state.seats.append(Seat(seat, Mode(mode.decode()), int(until), bool(turn), int(called), int(grace)))
    return state


def _text(packed: bytes, start: int, size: int) -> tuple[str, int]:
    return packed[start : start + size].decode(), start + size


def wake(payload: bytes, prefix: str) -> Wake:
    """What was published for a seat of ours."""
    after, size, rest = payload.split(b" ", 2)
    seat, key = rest[: int(size)].decode(), rest[int(size) :].decode()
    return Wake(key.removeprefix(prefix), seat, int(after))
