"""One key under the law, with the clock in hand."""

from collections.abc import Callable
from typing import NamedTuple

from grelmicro_fastapi.coordination import rules, turns
from grelmicro_fastapi.coordination.state import (
    CLAIM,
    Acquire,
    Command,
    Leave,
    Mode,
    Poison,
    Release,
    Reply,
    State,
    Undo,
    Verdict,
)

from .frozen import Step


class Law(NamedTuple):
    """What is judged: the law itself, or a mutant of it."""

    step: Step
    outlook: Callable[[State, str, Mode, int], int]


REAL = Law(rules.step, turns.outlook)


class Key:
    """A state and a clock. Tokens and seats are named by the test; leases last 1000 ms, places 3000 ms."""

    def __init__(self, law: Law = REAL) -> None:
        self.law = law
        self.state = State()
        self.now = 1_000_000

    def later(self, ms: int) -> None:
        self.now += ms

    def ask(self, command: Command, claim: int = CLAIM) -> Reply:
        return self.law.step(self.state, command, self.now, claim)

    def read(self, token: str, seat: str = "", **how: object) -> Reply:
        return self.ask(Acquire(token, Mode.READ, **{"ttl": 1000, "seat": seat, **how}))

    def write(self, token: str, seat: str = "", **how: object) -> Reply:
        return self.ask(Acquire(token, Mode.WRITE, **{"ttl": 1000, "seat": seat, **how}))

    def release(self, token: str, poison: Poison = Poison.CLEAR, min_hold: int = 0) -> Reply:
        return self.ask(Release(token, min_hold, poison))

    def undo(self, token: str) -> Reply:
        return self.ask(Undo(token))

    def leave(self, seat: str) -> Reply:
        return self.ask(Leave(seat))

    def outlook(self, seat: str, mode: Mode) -> int:
        return self.law.outlook(self.state, seat, mode, self.now)

    @property
    def seats(self) -> list[str]:
        return [seat.id for seat in self.state.seats]


def verdicts(*replies: Reply) -> list[Verdict]:
    return [reply.verdict for reply in replies]
