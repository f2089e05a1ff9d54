"""The short way says what the whole law says, and says it where most holds are: alone."""

import copy
import random
from functools import cache

import pytest

from grelmicro_fastapi.coordination import rules
from grelmicro_fastapi.coordination.state import Acquire, Command, Mode, Poison, Release, Reply, State, Writer
from grelmicro_fastapi.coordination.uncontended import alone
from tests.coordination.histories import history

from .mutant import Mutant, ShortWay, no_short_way, of_the_short_way

WRONG_SHORT_WAYS = [
    of_the_short_way("it overtakes the queue", " or state.seats or state.graves", " or state.graves", "enters"),
    of_the_short_way("graves refuse nobody", " or state.seats or state.graves", " or state.seats", "enters"),
    of_the_short_way("a writer is in nobody's way", "if state.writer or ", "if ", "enters"),
    of_the_short_way("readers are in no writer's way", "mode is Mode.WRITE or token", "token"),
    of_the_short_way("who reads already comes anew", " or token in readers or min", " or min"),
    of_the_short_way("a reader comes beside the dead", " or min(readers.values()) <= now", "", "enters"),
    of_the_short_way("a reader comes as another dies", "s()) <= now", "s()) < now", "enters"),
    of_the_short_way("expect is not heard", " if expect is None else None", ""),
    of_the_short_way("the lease of a writer is none", "token, now, now + ttl", "token, now, now"),
    of_the_short_way("the lease of a reader is none", "[token] = now + ttl", "[token] = now"),
    of_the_short_way("poison is not found", "state.readers, state.poisoned", "state.readers, False"),
    of_the_short_way("everybody reads", "if mode is Mode.WRITE:", "if False:"),
    of_the_short_way("everybody writes", "if mode is Mode.WRITE:", "if True:"),
    of_the_short_way("the fence stands still", "state.fence += 1", "pass"),
    of_the_short_way("the note is lost", "now + ttl, note, poisoned)", "now + ttl, '', poisoned)"),
    of_the_short_way("the writer does not take the poison over", "ttl, note, poisoned)", "ttl, note)"),
    of_the_short_way("the flag stays when a writer takes it over", "poisoned), False", "poisoned), state.poisoned"),
    of_the_short_way("who comes touches nothing", "    state.touched = now\n", "", "enters"),
    of_the_short_way("the fence is not told", "return state.fence, poisoned", "return 0, poisoned"),
    of_the_short_way("what was found is not told", "return state.fence, poisoned", "return state.fence, False"),
    of_the_short_way("a release wakes nobody who waits", "state.seats or state.graves", "state.graves", "leaves"),
    of_the_short_way(
        "a release leaves the dead where they are", "state.seats or state.graves", "state.seats", "leaves"
    ),
    of_the_short_way("anybody may release", "writer.token != token or ", ""),
    of_the_short_way("the dead release", " or writer.until <= now", ""),
    of_the_short_way("a writer outlives its lease", "writer.until <= now", "writer.until < now"),
    of_the_short_way("no min hold", "(not command.min_hold and ", "("),
    of_the_short_way("an error does not keep the poison", " and command.poison is Poison.CLEAR", ""),
    of_the_short_way("the writer stays", "        state.writer = None\n", "        pass\n"),
    of_the_short_way("one reader takes all out", "del readers[token]", "readers.clear()"),
    of_the_short_way("a reader outlives its lease", "s()) <= now", "s()) < now", "leaves"),
    of_the_short_way(
        "a reader leaves the dead behind", "not in readers or min(readers.values()) <= now", "not in readers"
    ),
    of_the_short_way("the reader stays", "del readers[token]", "pass"),
    of_the_short_way("who leaves touches nothing", "    state.touched = now\n", "", "leaves"),
]

RARE = [
    (State(writer=Writer("one", 1, 9), graves={"two": 5}), Release("one"), 7),
    (State(readers={"one": 9}, graves={"two": 5}), Release("one"), 7),
    (State(readers={"one": 9}), Release("one"), 9),
]
"""What chance brings about too seldom."""


@cache
def moments() -> list[tuple[State, Command, int]]:
    """What many keys come by, and few: each state, with the command that reached it, and when."""
    rng, seen = random.Random(20_261_201), list[tuple[State, Command, int]](RARE)
    for _ in range(500):
        state = State()
        for now, claim, commands in history(rng):
            for command in commands:
                seen.append((copy.deepcopy(state), command, now))
                rules.step(state, command, now, claim)
    return seen


def says(way: ShortWay, state: State, command: Command, now: int) -> tuple[Reply | None, State]:
    after = copy.deepcopy(state)
    return way(after, command, now), after


def strays(way: ShortWay, whole: ShortWay) -> bool:
    """Does it ever say or do anything else than the whole law, or do anything where it says nothing?"""
    for state, command, now in moments():
        reply, after = says(way, state, command, now)
        if (reply, after) != (says(whole, state, command, now) if reply else (None, state)):
            return True
    return False


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> ShortWay:
    """The law without its short way."""
    moments()
    monkeypatch.setattr(rules, "alone", no_short_way)
    return rules.step


def test_it_says_and_does_what_the_whole_law_does(whole: ShortWay) -> None:
    assert not strays(alone, whole)


@pytest.mark.parametrize("wrong", WRONG_SHORT_WAYS, ids=lambda mutant: mutant.breaks)
def test_a_wrong_one_is_told_apart(wrong: Mutant, whole: ShortWay) -> None:
    assert strays(wrong.short_way(), whole)


@pytest.mark.parametrize("mode", Mode)
def test_a_hold_that_nobody_else_wants_needs_nothing_else(mode: Mode) -> None:
    state = State(fence=7, poisoned=True)
    assert alone(state, Acquire("one", mode, 60_000), 1_000)
    assert alone(state, Release("one", poison=Poison.CLEAR), 2_000)
    assert state == State(fence=7 + (mode is Mode.WRITE), poisoned=mode is Mode.READ, touched=2_000)


def test_a_reader_beside_readers_needs_nothing_else() -> None:
    state = State(fence=7, readers={"one": 9_000})
    assert alone(state, Acquire("two", Mode.READ, 60_000), 1_000)
    assert alone(state, Release("one"), 2_000)
    assert state == State(fence=7, readers={"two": 61_000}, touched=2_000)
