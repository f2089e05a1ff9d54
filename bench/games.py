"""What members are asked to do with locks, and what they say about it. Times are those of the monotonic clock."""

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench.contenders import Contender, Give
from bench.stopwatch import Once, median_of, together

Held = tuple[float, float]
"""When a hold began, and when its release was sent."""


async def make(contender: Contender, name: str) -> None:
    """Prepare for a new name. For one member only."""
    await contender.make(name)


async def pair(contender: Contender, what: str, name: str, batches: int, each: int) -> float:
    """The median seconds of acquire and release, of batches that are timed as a whole: a clock costs time too."""
    return await median_of(_pair(contender, what, name), batches=batches, each=each)


async def crowd(contender: Contender, what: str, names: list[str], each: int) -> float:
    """The mean seconds of a pair, when a task for each of these names does so many pairs, all at the same time."""
    return await together([_pair(contender, what, name) for name in names], each=each)


async def turns(contender: Contender, name: str, turns: int, least: float, most: float) -> list[Held]:
    """Hold it so many times, between `least` and `most` seconds, at random so that nobody polls in step with it."""
    take, held = contender.lock("write", name), list[Held]()
    for _ in range(turns):
        give = await take()
        acquired = time.monotonic()
        await asyncio.sleep(random.uniform(least, most))
        released = time.monotonic()
        await give()
        held.append((acquired, released))
    return held


async def loop(
    contender: Contender, what: str, name: str, tasks: int, hold: float, start: float, seconds: float
) -> dict[str, Any]:
    """Take it again and again, from `start` on. A wait that has not ended by the end counts as far as it got."""
    waits, spans, counts, before = list[float](), list[Held](), [0] * tasks, contender.asked()
    end = start + seconds

    async def run(place: int) -> None:
        take = contender.lock(what, name)
        while (asked := time.monotonic()) < end:
            waits.append(end - asked)
            mine = len(waits) - 1
            give = await take()
            acquired = time.monotonic()
            waits[mine] = acquired - asked
            counts[place] += acquired < end
            await asyncio.sleep(hold)
            spans.append((acquired, time.monotonic()))
            await give()

    await _until(start)
    running = [asyncio.create_task(run(place)) for place in range(tasks)]
    # Those who hold it at the end give it back; those who wait are not waited for.
    await asyncio.wait(running, timeout=end - time.monotonic())
    asked = contender.asked() - before
    await asyncio.wait(running, timeout=2 * hold + 0.05)
    await _cancel(running)
    return {"waits": waits, "spans": spans, "counts": counts, "asked": asked}


async def once(contender: Contender, name: str, tasks: int, hold: float, start: float) -> float:
    """Start together, hold it once each, and say when the last was done."""

    async def run() -> None:
        give = await contender.lock("write", name)()
        await asyncio.sleep(hold)
        await give()

    await _until(start)
    await asyncio.gather(*[run() for _ in range(tasks)])
    return time.monotonic()


_taken: dict[str, Give] = {}
_wanting: dict[str, "list[asyncio.Task[float]]"] = {}


async def take(contender: Contender, what: str, name: str) -> float:
    """Take it and keep it. Says since when."""
    _taken[name] = await contender.lock(what, name)()
    return time.monotonic()


async def give(_: Contender, name: str) -> float:
    """Give back what was taken. Says when that began."""
    began = time.monotonic()
    await _taken.pop(name)()
    return began


async def want(contender: Contender, what: str, name: str, tasks: int) -> None:
    """Start to wait for it, and do not wait for that."""
    _wanting[name] = [asyncio.create_task(take(contender, what, name)) for _ in range(tasks)]


async def granted(contender: Contender, name: str) -> float:
    """Wait until the one who wants it has it, and give it back. Says since when it was had."""
    (waiting,) = _wanting.pop(name)
    since = await waiting
    await give(contender, name)
    return since


async def forget(_: Contender, name: str) -> None:
    """Do not wait for it any more."""
    await _cancel(_wanting.pop(name))


async def keep(contender: Contender, name: str, guards: int, lease: float, seconds: float) -> dict[str, float]:
    """Keep so many locks alive: the share of a core that it takes, and the 99th percentile of a renewal's lateness.

    A renewal is due after a third of the lease, and is late until its answer is here. Every twentieth lock is watched.
    """
    left = (await contender.kept([f"{name}:{number}" for number in range(guards)], lease))[::20]
    ends, late = [time.monotonic() + each() for each in left], list[float]()
    # A guard ends before its lease does, by a margin that the first of them shows.
    third, whole = lease / 3, max(each() for each in left)
    began, spent = time.monotonic(), time.process_time()
    while time.monotonic() < began + seconds:
        await asyncio.sleep(0.25)
        for place, each in enumerate(left):
            now = time.monotonic()
            if (end := now + each()) > ends[place] + 0.001:
                late.append(max(0.0, now - (ends[place] - whole + third)))
                ends[place] = end
    spent, took = time.process_time() - spent, time.monotonic() - began
    return {"share": spent / took, "late": statistics.quantiles(late, n=100)[98]}


GAMES: dict[str, Callable[..., Awaitable[Any]]] = {
    game.__name__: game for game in (make, pair, crowd, turns, loop, once, take, give, want, granted, forget, keep)
}


def _pair(contender: Contender, what: str, name: str) -> Once:
    take = contender.lock(what, name)

    async def pair() -> None:
        give = await take()
        await give()

    return pair


async def _until(start: float) -> None:
    await asyncio.sleep(start - time.monotonic())


async def _cancel(tasks: "list[asyncio.Task[Any]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
