"""The short way says what the whole law says, and says it where most holds are: alone."""

import copy
import random
from functools import cache

import pytest

from grelmicro_fastapi.coordination import rules
from grelmicro_fastapi.coordination.state import Acquire, Command, Mode, Poison, Release, Reply, State
from grelmicro_fastapi.coordination.uncontended import alone
from tests.coordination.histories import history

from .mutant import Mutant, ShortWay, no_short_way, of_the_short_way

WRONG_SHORT_WAYS = [
    of_the_short_way("it overtakes the queue", "state.seats or state.graves", "state.graves"),
    of_the_short_way("graves refuse nobody", "state.seats or state.graves", "state.seats"),
    of_the_short_way("a writer is in nobody's way", "if writer or readers or", "if readers or"),
    of_the_short_way("readers are in nobody's way", "if writer or readers or", "if writer or"),
    of_the_short_way("expect is not heard", " or command.expect is not None", ""),
    of_the_short_way("the lease is none", "now + command.ttl", "now"),
    of_the_short_way("poison is not found", "now + command.ttl, state.poisoned", "now + command.ttl, False"),
    of_the_short_way("everybody reads", "if command.mode is Mode.WRITE:", "if False:"),
    of_the_short_way("everybody writes", "if command.mode is Mode.WRITE:", "if True:"),
    of_the_short_way("the fence stands still", "state.fence += 1", "pass"),
    of_the_short_way("the note is lost", "until, command.note, poisoned)", "until, '', poisoned)"),
    of_the_short_way("the writer does not take the poison over", "command.note, poisoned)", "command.note)"),
    of_the_short_way("the flag stays when a writer takes it over", "poisoned), False", "poisoned), state.poisoned"),
    of_the_short_way("anybody may release", "writer.token != command.token or ", ""),
    of_the_short_way("the dead release", " or writer.until <= now", ""),
    of_the_short_way("a writer outlives its lease", "writer.until <= now", "writer.until < now"),
    of_the_short_way("no min hold", "command.min_hold or ", ""),
    of_the_short_way("an error does not keep the poison", " or command.poison is not Poison.CLEAR", ""),
    of_the_short_way("the writer stays", "        state.writer = None\n", "        pass\n"),
    of_the_short_way("one reader takes all out", "len(readers) == 1 and ", ""),
    of_the_short_way("any reader leaves", "readers.get(command.token, now) > now", "True"),
    of_the_short_way("a reader outlives its lease", "command.token, now) > now", "command.token, now - 1) >= now"),
    of_the_short_way("the reader stays", "        readers.clear()\n", "        pass\n"),
    of_the_short_way("nothing is touched", "    state.touched = now\n", ""),
    of_the_short_way("what was found is not told", "state.fence, poisoned, 0", "state.fence, False, 0"),
]


@cache
def moments() -> list[tuple[State, Command, int]]:
    """What many keys come by: each state, with the command that reached it, and when."""
    rng, seen = random.Random(20_261_201), list[tuple[State, Command, int]]()
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
