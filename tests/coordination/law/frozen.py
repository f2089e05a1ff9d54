"""A state as a value: what two explorations share."""

from collections.abc import Callable
from typing import Any

from grelmicro_fastapi.coordination.state import Command, Reply, Seat, State, Writer

Step = Callable[[State, Command, int, int], Reply]
Frozen = tuple[Any, ...]

TICK = 10_000
"""In ms: a third of a grave."""
NOW, FENCE = 100 * TICK, 1_000


def freeze(state: State) -> Frozen:
    """The state as a value in which only what is left counts. The dead who leave no trace are left out."""
    writer = state.writer
    return (
        state.poisoned,
        writer and (writer.token, max(writer.until - NOW, 0), writer.poisoned),
        tuple(sorted((token, until - NOW) for token, until in state.readers.items() if until > NOW)),
        tuple(
            (s.id, s.mode, s.until - NOW, s.turn, s.called - NOW if s.called > NOW else -bool(s.called), s.grace)
            for s in state.seats
            if s.until > NOW
        ),
        tuple(sorted((token, until - NOW) for token, until in state.graves.items() if until > NOW)),
    )


def thaw(frozen: Frozen, passed: int = 0) -> State:
    """The state again, `passed` ms later."""
    poisoned, writer, readers, seats, graves = frozen
    then = NOW - passed
    return State(
        fence=FENCE,
        poisoned=poisoned,
        writer=Writer(writer[0], 0, then + writer[1], "", writer[2]) if writer else None,
        readers={token: then + left for token, left in readers},
        seats=[
            Seat(name, mode, then + left, turn, called and then + max(called, 0), grace)
            for name, mode, left, turn, called, grace in seats
        ],
        graves={token: then + left for token, left in graves},
    )


class Broken(AssertionError):  # noqa: N818 - it says what happened to an invariant, not that a program erred
    """An invariant fell. The message tells how it came to that."""


def must(holds: bool, law: str) -> None:
    """Say which invariant fell, if it did."""
    if not holds:
        raise Broken(law)
