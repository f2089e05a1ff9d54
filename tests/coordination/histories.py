"""Random histories of one key, told by the law of `rules.py`: what every port of the law must tell too."""

import copy
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from grelmicro_fastapi.coordination.rules import step
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
    State,
    Undo,
    Vacate,
)

TOKENS = ["one", "two", "three", "four: ö' %s\\", '5 \n\t"x"']
SEATS = ["a/r", "a/w", "b/r", "b/w", "c/r", "c/w"]
STARTS = [1_796_074_665_055, 1_796_074_665_055_123, 40_000]


class Batch(NamedTuple):
    """Commands that reach the key together, at one moment."""

    now: int
    claim: int
    commands: tuple[Command, ...]


class Outcome(NamedTuple):
    replies: tuple[Reply, ...]
    state: State


History = Sequence[Batch]


def tell(history: History) -> list[Outcome]:
    """What the law makes of a history."""
    state = State()
    told: list[Outcome] = []
    for now, claim, commands in history:
        replies = tuple(step(state, command, now, claim) for command in commands)
        told.append(Outcome(replies, copy.deepcopy(state)))
    return told


def history(rng: random.Random, length: int = 30) -> list[Batch]:
    """A history of a few processes that acquire, wait, give up, die and come back."""
    now = rng.choice(STARTS)
    # Some histories are of leases that end all the time, others of long ones before which a queue grows.
    ttls = rng.choice([[1, 5, 20], [50, 1_000], [5_000, 60_000], [60_000], [1, 300, 60_000]])
    pauses = rng.choice([[0, 1, 2, 5], [0, 10, 60, 249, 250, 251], [0, 1, 60, 251, 500, 1_000, 3_000, 30_000, 70_000]])
    odd = rng.choice([0.0, 0.05, 0.3])
    state = State()
    batches: list[Batch] = []
    for _ in range(rng.randint(1, length)):
        now += rng.choice(pauses)
        claim = rng.choice([250, 250, 251, 900, 1])
        commands: list[Command] = []
        for _ in range(rng.choice([1, 1, 1, 2, 3, 5])):
            commands.append(_odd(rng, now, ttls) if rng.random() < odd else _usual(rng, state, ttls))
            step(state, commands[-1], now, claim)
        batches.append(Batch(now, claim, tuple(commands)))
    return batches


def line(rng: random.Random, length: int = 30) -> list[Batch]:
    """A history of processes that only write, and queue for it. Some come too late when they are called."""
    now = rng.choice(STARTS)
    pauses = rng.choice([[0, 1, 60], [0, 60, 251, 500], [0, 251, 1_000, 2_900]])
    state = State()
    batches: list[Batch] = []
    for _ in range(length):
        now += rng.choice(pauses)
        claim = rng.choice([250, 250, 900, 1])
        commands: list[Command] = []
        if state.writer and rng.random() < 0.6:
            token = state.writer.token if rng.random() < 0.95 else rng.choice(TOKENS)
            commands.append(Release(token, 1_000 if rng.random() < 0.05 else 0))
        if not commands or rng.random() < 0.3:
            seat, place, more = rng.choice(SEATS[1::2]), rng.choice([3_000, 3_000, 700]), rng.random() < 0.3
            token, ttl = rng.choice(TOKENS), rng.choice([60_000, 60_000, 400])
            expect = state.fence - rng.randint(0, 1) if rng.random() < 0.05 else None
            commands.append(Acquire(token, Mode.WRITE, ttl, seat, place, more, expect))
        for command in commands:
            step(state, command, now, claim)
        batches.append(Batch(now, claim, tuple(commands)))
    return batches


def _usual(rng: random.Random, state: State, ttls: list[int]) -> Command:
    """What processes do all day. Mostly whoever holds a lease is the one who gives it back."""
    holders = [*state.readers, *([state.writer.token] if state.writer else [])]
    token = rng.choice(holders) if holders and rng.random() < 0.8 else rng.choice(TOKENS)
    kind = rng.random()
    if kind < 0.6:
        return _acquire(rng, rng.choice(TOKENS), ttls)
    if kind < 0.85:
        return Release(token, rng.choice([0, 0, 0, 0, 10, 1_000]), rng.choice([Poison.CLEAR, *Poison]))
    if kind < 0.9:
        return Renew(token, rng.choice(ttls))
    if kind < 0.95:
        return Downgrade(token, rng.choice(ttls))
    return Undo(token) if kind < 0.97 else Leave(rng.choice(SEATS))


def _odd(rng: random.Random, now: int, ttls: list[int]) -> Command:
    """What operators and tasks do, and what comes too late."""
    token = rng.choice(TOKENS)
    makers: list[Callable[[], Command]] = [
        lambda: Advance(token, rng.choice([now, now - 1, now + 1, now - 300, 1, 2, 3])),
        lambda: rng.choice([Force(), Mend(), Vacate()]),
        lambda: Purge(rng.choice([0, 1, 100, 50_000])),
        lambda: rng.choice([Undo(token), Renew(token, 5), Leave(rng.choice(SEATS)), Release(token)]),
        lambda: _acquire(rng, token, ttls)._replace(expect=rng.randint(0, 4)),
        lambda: _acquire(rng, token, ttls)._replace(mode=rng.choice([*Mode])),
    ]
    return rng.choice(makers)()


def _acquire(rng: random.Random, token: str, ttls: list[int]) -> Acquire:
    seat = rng.choice(["", *SEATS, *SEATS])
    return Acquire(
        token,
        Mode(seat[-1]) if seat else rng.choice([*Mode]),
        rng.choice(ttls),
        seat,
        rng.choice([3_000, 3_000, 15_000, 60, 5]),
        rng.random() < 0.25,
        note=rng.choice(["", "", "who: ü 7"]),
    )
