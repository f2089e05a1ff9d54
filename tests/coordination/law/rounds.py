"""Every order in which a few processes can take turns, and how long the unluckiest of them waits.

Messages arrive. Everybody asks when woken, at an alarm, or when the reply said that time could help; a holder leaves
when it likes, at most one tick later; whoever has left may come again at once. What is left to chance is the order.
One process may be mute: it queued, and never answers when called. One may be slow: it answers `late` ticks after.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from grelmicro_fastapi.coordination.state import Acquire, Mode, Release, Reply, State, Verdict

from .frozen import NOW, TICK, Broken, Frozen, Step, freeze, must, thaw

CLAIM, PLACE, TTL = 1, 30, 90
"""In ticks. A place outlasts everything here, so that only turns, calls and lapses can help."""
OUT, HOLDS = -1, -2


class Turns(NamedTuple):
    """A situation. `dues` has, for each seat, in how many ticks it asks, or `OUT` or `HOLDS`.

    `writes` were granted to others since the victim queued, `reads` too if it wants to write: a reader is not hindered
    by readers. For `idle` ticks nobody has held the key.
    """

    store: Frozen
    dues: tuple[int, ...]
    held: int = 0
    idle: int = 0
    writes: int = 0
    reads: int = 0


class Company(NamedTuple):
    """Who is there: seats such as "a/w"; the victim whose wait counts; who never answers; who answers late.

    Every hold lasts at least `hold` ticks: beside a slow process it must take time, or others hold for ever in no time.
    """

    seats: tuple[str, ...]
    victim: str
    mute: str = ""
    slow: str = ""
    late: int = 2
    hold: int = 0


class Wait(NamedTuple):
    """The longest wait of the victim, and how many situations were visited."""

    writes: int = 0
    reads: int = 0
    idle: int = 0
    situations: int = 0


class Game:
    def __init__(self, step: Step, company: Company) -> None:
        self.step = step
        self.company = company
        self.victim = company.seats.index(company.victim)

    def moves(self, at: Turns) -> Iterator[tuple[str, Turns]]:
        busy = any(due == HOLDS for due in at.dues)
        ready = False
        for who, due in enumerate(at.dues):
            seat = self.company.seats[who]
            if due == HOLDS:
                if at.held >= self.company.hold:
                    yield f"{seat} leaves", self.leave(at, who)
            elif due == OUT:
                yield f"{seat} asks", self.ask(at, who)
            elif due == 0 and not self.is_mute(seat):
                ready = True
                yield f"{seat} asks again", self.ask(at, who)
        if not ready and at.dues[self.victim] >= 0 and not (busy and at.held):
            yield (
                "tick",
                at._replace(
                    store=freeze(thaw(at.store, TICK)),
                    dues=tuple(due - 1 if due > 0 else due for due in at.dues),
                    held=int(busy),
                    idle=0 if busy else at.idle + 1,
                ),
            )

    def is_mute(self, seat: str) -> bool:
        return seat[0] == self.company.mute

    def ask(self, at: Turns, who: int) -> Turns:
        seat = self.company.seats[who]
        mode = Mode(seat[-1])
        state = thaw(at.store)
        reply = self.step(state, Acquire(seat, mode, TTL * TICK, seat, PLACE * TICK), NOW, CLAIM * TICK)
        dues = list(at.dues)
        dues[who] = self.pause(seat, reply.retry or PLACE * TICK)
        writes, reads, idle, held = at.writes, at.reads, at.idle, at.held
        if reply.verdict is Verdict.GRANTED:
            dues[who], idle, held = HOLDS, 0, 0
            if dues[self.victim] >= 0:
                writes, reads = (
                    writes + (mode is Mode.WRITE),
                    reads + (mode is Mode.READ and self.company.victim[-1] == "w"),
                )
        return self.after(at._replace(writes=writes, reads=reads, idle=idle, held=held), state, dues, reply)

    def leave(self, at: Turns, who: int) -> Turns:
        state = thaw(at.store)
        reply = self.step(state, Release(self.company.seats[who]), NOW, CLAIM * TICK)
        dues = list(at.dues)
        dues[who] = OUT
        held = at.held if HOLDS in dues else 0
        return self.after(at._replace(held=held), state, dues, reply)

    def pause(self, seat: str, delay: int) -> int:
        late = self.company.late if seat[0] == self.company.slow else 0
        return min(-(-delay // TICK), PLACE // 3) + late

    def after(self, at: Turns, state: State, dues: list[int], reply: Reply) -> Turns:
        for seat, delay in reply.wakes:
            who = self.company.seats.index(seat)
            if dues[who] >= 0:
                dues[who] = min(dues[who], self.pause(seat, delay))
        return at._replace(store=freeze(state), dues=tuple(dues))


def longest(step: Step, company: Company, writes: int, reads: int = 99, idle: int = 0) -> Wait:
    """Play every game until the victim is in, and say how long it waits at worst. `Broken` beyond the bounds."""
    game = Game(step, company)
    start = Turns(freeze(State()), (OUT,) * len(company.seats))
    came: dict[Turns, tuple[Turns | None, str]] = {start: (None, "")}
    frontier = deque([start])
    worst = Wait()
    while frontier:
        at = frontier.popleft()
        if at.dues[game.victim] == HOLDS:
            continue
        moved = False
        for what, following in game.moves(at):
            moved = True
            must(following != at, f"{what} in vain, and would do so for ever: {tale(came, at)}")
            if following not in came:
                came[following] = (at, what)
                frontier.append(following)
                worst = Wait(
                    max(worst.writes, following.writes),
                    max(worst.reads, following.reads),
                    max(worst.idle, following.idle),
                )
                if following.writes > writes or following.reads > reads or following.idle > idle:
                    raise Broken(f"{company.victim} waits too long ({following[3:]}): {tale(came, following)}")
        must(moved, f"nothing can happen any more: {tale(came, at)}")
    return worst._replace(situations=len(came))


def tale(came: dict[Turns, tuple[Turns | None, str]], at: Turns | None) -> str:
    told: list[str] = []
    while at is not None:
        at, what = came[at]
        told.append(what)
    return " | ".join(reversed(told[:-1]))
