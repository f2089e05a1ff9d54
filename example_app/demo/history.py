"""What clients saw of a counter that many increment at once, and whether that can be true.

An update whose answer never came is neither done nor not done: it is unknown, and may count or not.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from itertools import accumulate, pairwise
from typing import NamedTuple


class Outcome(Enum):
    """What a client knows of its update."""

    ACKNOWLEDGED = auto()
    REFUSED = auto()
    UNKNOWN = auto()


class Update(NamedTuple):
    """One request to increment, with the moments at which it was sent and had ended for its client.

    The rest is what the answer said: of one that is not an acknowledgement, `problem` names the kind.
    """

    name: str
    sent: float
    ended: float
    outcome: Outcome
    quantity: int = 0
    token: int = 0
    poisoned: bool = False
    problem: str = "no answer"


def faults(history: Iterable[Update], final: Mapping[str, int]) -> list[str]:
    """Why this history cannot be that of a correct counter which started at 0, one sentence each.

    `final` holds the quantities read after everything had ended.
    """
    by_name: defaultdict[str, list[Update]] = defaultdict(list)
    for update in history:
        by_name[update.name].append(update)
    return [f"{name}: {fault}" for name, updates in sorted(by_name.items()) for fault in _faults(updates, final[name])]


def _faults(updates: list[Update], final: int) -> Iterator[str]:
    done = sorted((one for one in updates if one.outcome is Outcome.ACKNOWLEDGED), key=lambda one: one.token)
    perhaps = [one for one in updates if one.outcome is not Outcome.REFUSED]
    yield from _order_of_tokens(done)
    yield from _order_of_time(done)
    yield from _upper_bound(done, perhaps)
    if final < len(done):
        yield f"{len(done)} updates were acknowledged and {final} are left: {len(done) - final} lost"
    if final > len(perhaps):
        yield f"{len(perhaps)} updates can have been done, and {final} are there"


def _order_of_tokens(done: list[Update]) -> Iterator[str]:
    """In the order of their tokens, holders counted up."""
    for one, next_one in pairwise(done):
        if one.token == next_one.token:
            yield f"token {one.token} was given to two holders"
        if one.quantity >= next_one.quantity:
            yield (
                f"the holder of token {next_one.token} wrote {next_one.quantity}"
                f" after the holder of {one.token} had written {one.quantity}: an update was lost"
            )


def _order_of_time(done: list[Update]) -> Iterator[str]:
    """Whoever asked after another had its answer, holds a higher token."""
    ended = sorted(done, key=lambda one: one.ended)
    highest = list(accumulate((one.token for one in ended), max))
    for one in done:
        before = bisect_left(ended, one.sent, key=lambda other: other.ended)
        if before and highest[before - 1] > one.token:
            yield f"token {one.token} was given after token {highest[before - 1]} had been answered"


def _upper_bound(done: list[Update], perhaps: list[Update]) -> Iterator[str]:
    """Nobody counts more than was ever asked for until then."""
    sent = sorted(one.sent for one in perhaps)
    for one in done:
        most = bisect_left(sent, one.ended)
        if one.quantity > most:
            yield f"the holder of token {one.token} counted {one.quantity}, and only {most} had been asked for"
