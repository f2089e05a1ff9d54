"""Contests between processes for one name. Each returns a block; a name is never used twice."""

import asyncio
import bisect
import itertools
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise

from bench.members import Member
from bench.row import Block

SOON = 0.03
"""Seconds from now at which processes can start together."""
_numbers = itertools.count()


def fresh(what: str) -> str:
    """A name that nobody has used."""
    return f"{what}:{next(_numbers)}"


def hand_over(members: Sequence[Member], *, turns: int = 10, hold: tuple[float, float] = (0.005, 0.015)) -> Block:
    """Two processes hand a lock to and fro: the median seconds from a release until the waiter runs."""

    async def block() -> float:
        name = fresh("token")
        await members[0].ask("make", name=name)
        least, most = hold
        asking = [member.ask("turns", name=name, turns=turns, least=least, most=most) for member in members]
        played = await asyncio.gather(*asking)
        held = sorted((*span, player) for player, spans in enumerate(played) for span in spans)
        return statistics.median(after[0] - before[1] for before, after in pairwise(held) if before[2] != after[2])

    return block


def contention(members: Sequence[Member], *, tasks: int = 25, hold: float = 0.001, seconds: float = 1.5) -> Block:
    """All tasks of all processes want the same lock, again and again.

    `cost` is the seconds for each acquisition, `wait` the 99th percentile of waits, `unfairness` 1 less Jain's index,
    `starved` counts tasks that got nothing, and `asked` the commands for each acquisition.
    """

    async def block() -> Mapping[str, float]:
        name = fresh("contended")
        await members[0].ask("make", name=name)
        start = time.monotonic() + SOON
        options = {"what": "write", "name": name, "tasks": tasks, "hold": hold, "start": start, "seconds": seconds}
        played = await asyncio.gather(*[member.ask("loop", **options) for member in members])
        counts = [count for each in played for count in each["counts"]]
        got = sum(counts)
        return {
            "cost": seconds / got,
            "wait": statistics.quantiles([wait for each in played for wait in each["waits"]], n=100)[98],
            "unfairness": 1 - got**2 / (len(counts) * sum(count**2 for count in counts)),
            "starved": counts.count(0),
            # Whoever does not count is not frugal.
            "asked": sum(each["asked"] for each in played) / got or math.nan,
        }

    return block


def burst(members: Sequence[Member], *, tasks: int, hold: float = 0.001) -> Block:
    """All tasks of all processes start together and want it once: seconds until the last is done."""

    async def block() -> float:
        name = fresh("burst")
        await members[0].ask("make", name=name)
        start = time.monotonic() + SOON
        options = {"name": name, "tasks": tasks, "hold": hold, "start": start}
        return max(await asyncio.gather(*[member.ask("once", **options) for member in members])) - start

    return block


def readers_among_writers(readers: Member, writers: Sequence[Member], *, hold: float = 0.01) -> Block:
    """A hundred readers in one process beside writers that never pause.

    The longest wait of a reader, in terms of the two longest holds of writers and of the usual time from a writer's
    release until a reader runs.
    """

    async def block() -> float:
        common = {"name": fresh("both"), "start": time.monotonic() + SOON, "seconds": 1.0}
        reading = readers.ask("loop", what="read", tasks=100, hold=0.001, **common)
        writing = [writer.ask("loop", what="write", tasks=1, hold=hold, **common) for writer in writers]
        read, *wrote = await asyncio.gather(reading, *writing)
        spans = [(since, until) for each in wrote for since, until in each["spans"]]
        longest = sorted(until - since for since, until in spans)[-2:]
        entered = sorted(since for since, _ in read["spans"])
        places = [(until, bisect.bisect(entered, until)) for _, until in spans]
        hand_over = statistics.median(entered[place] - until for until, place in places if place < len(entered))
        return float(max(read["waits"])) / (sum(longest) + hand_over)

    return block
