"""Tests of the explorations: without any table they must catch the wrong laws that concern them."""

import pytest

from grelmicro_fastapi.coordination.state import Poison

from .explore import explore
from .frozen import Broken
from .key import REAL, Law
from .mutant import Mutant
from .rounds import Company, longest
from .world import Scope
from .wrong_endings import WRONG_ENDINGS
from .wrong_grants import WRONG_GRANTS
from .wrong_turns import WRONG_TURNS

SCOPES = (
    Scope(("W", "W"), ticks=2),
    Scope(("W", "R"), ticks=2),
    Scope(("W",), ticks=3, doubts=1, quits=1),
    Scope(("D", "R"), ticks=1),
    Scope(("WW",), ticks=3, bodies=tuple(Poison)),
)
CAUGHT_BY_MESSAGES = (
    "a writer outlives its lease",
    "the dead leave no word",
    "graves refuse nobody",
    "a resend is a new grant",
    "everybody may enter",
    "the fence stands still",
    "the fence jumps",
    "readers raise the fence",
    "the writer does not take the poison over",
    "the flag stays when a writer takes it over",
    "a read ends the poison",
    "a grant does not say that it is poisoned",
    "a grant keeps its seat",
    "a downgrade leaves a gap",
    "a downgrade leaves the writer in",
    "anybody may release",
    "an error does not keep the poison",
    "an error poisons",
    "a word does not poison",
    "undo digs no grave",
    "graves are shallow",
    "undo loses the poison",
    "undo poisons",
    "undo forgets readers",
    "undo takes any writer back",
    "a writer is in nobody's way",
    "readers are not in a writer's way",
    "leaving leaves the seat",
)


@pytest.mark.parametrize("breaks", CAUGHT_BY_MESSAGES)
def test_the_exploration_of_messages_catches(breaks: str) -> None:
    law = named(breaks).law()
    with pytest.raises(Broken):
        exchange(law)


CAUGHT_BY_ROUNDS = (
    "the queue sleeps",
    "nobody is told",
    "a refusal does not say when",
    "a slow process never gets longer",
    "grace does not double",
    "a lapsed seat that asks stays lapsed",
    "who asks again goes to the end",
    "newcomers go first",
    "readers are in a reader's way",
    "a turn does not let in",
    "writers do not wait for turns",
    "turns never lapse",
    "waiting writers hold nobody back",
    "writers behind hold back too",
    "the lapsed hold back",
    "retry waits for the place of the called",
    "readers get no turn",
    "writers get turns",
    "turns are not told",
    "somebody is called under a writer",
    "a writer is called while others read",
    "nobody is reminded when turns end",
    "the second writer has no alarm",
    "readers behind have no alarm",
    "leaving empties the queue",
    "grace is not given",
    "the called are not expected",
    "a call lapses one late",
    "the uncalled have lapsed",
    "a lapsed writer is still the first",
)


@pytest.mark.parametrize("breaks", CAUGHT_BY_ROUNDS)
def test_the_exploration_of_rounds_catches(breaks: str) -> None:
    law = named(breaks).law()
    with pytest.raises(Broken):
        play(law)


def test_the_real_law_stands_the_same_explorations() -> None:
    exchange(REAL)
    play(REAL)


def exchange(law: Law) -> None:
    for scope in SCOPES:
        explore(law.step, scope)


def play(law: Law) -> None:
    longest(law.step, Company(("a/w", "b/r", "c/w"), "b/r"), writes=1)
    longest(law.step, Company(("m/w", "m/r", "a/r"), "a/r", mute="m"), writes=0, idle=2)
    longest(law.step, Company(("a/w", "b/w", "c/w"), "a/w"), writes=2)
    longest(law.step, Company(("a/w", "b/r", "c/r"), "a/w"), writes=0, reads=0)
    longest(law.step, Company(("s/w", "a/w"), "s/w", slow="s", late=4, hold=1), writes=8, idle=4)
    longest(law.step, Company(("m/w", "m/r", "a/w", "b/w"), "a/w", mute="m"), writes=1, idle=2)


def named(breaks: str) -> Mutant:
    mutants = (*WRONG_GRANTS, *WRONG_ENDINGS, *WRONG_TURNS)
    (mutant,) = (mutant for mutant in mutants if mutant.breaks == breaks)
    return mutant
