"""What callers believe, whatever the network does: every interleaving within each scope."""

import pytest

from grelmicro_fastapi.coordination import rules
from grelmicro_fastapi.coordination.state import Poison

from .explore import explore
from .frozen import Broken
from .world import Scope

SCOPES = {
    "two writers, late messages, expiry": Scope(("W", "W"), ticks=4),
    "two writers, repeated requests": Scope(("W", "W"), ticks=3, doubts=1),
    "two writers, one asks again": Scope(("WW", "W"), ticks=2),
    "two writers who may give up, or resend": Scope(("W", "W"), ticks=2, doubts=1, quits=1),
    "a writer who gives up and asks again": Scope(("WW",), ticks=4, quits=2),
    "two writers, one gives up": Scope(("W", "W"), ticks=4, quits=1),
    "two writers, one crashes": Scope(("W", "W"), ticks=5, crashes=1),
    "bodies that fail": Scope(("W", "W"), ticks=3, bodies=tuple(Poison)),
    "a reader and a writer": Scope(("W", "R"), ticks=4, doubts=1),
    "a reader and a writer, one gives up": Scope(("W", "R"), ticks=4, quits=1),
    "a writer that downgrades, and a reader": Scope(("D", "R"), ticks=3, quits=1),
    "a writer that downgrades, and a writer": Scope(("D", "W"), ticks=3, bodies=tuple(Poison)),
    "a reader, then a writer, beside a writer": Scope(("RW", "W"), ticks=2),
    "three processes": Scope(("W", "R", "W"), ticks=1),
    "three processes that do not queue": Scope(("W", "R", "W"), ticks=2, seats=False),
}


@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)
def test_whatever_the_network_does_the_law_holds(scope: Scope) -> None:
    assert explore(rules.step, scope) > 1000


def test_a_caller_who_believes_one_copy_of_a_resent_acquire_leaves_a_lease_behind() -> None:
    with pytest.raises(Broken, match="an attempt left something"):
        explore(rules.step, Scope(("W",), ticks=2, doubts=1, hasty=True))
