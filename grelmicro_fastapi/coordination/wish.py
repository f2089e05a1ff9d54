"""What a caller wants, and what it got."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from grelmicro_fastapi.coordination.state import Mode, Reply, Verdict
from grelmicro_fastapi.errors import BackendError, StaleGenerationError


@dataclass(frozen=True)
class Wish:
    """What a caller wants: the same for each of its attempts. Lengths in seconds."""

    name: str
    key: str
    mode: Mode
    lease: float
    retry_interval: float
    retry_jitter: float
    worker: str | None
    keep_alive: bool
    cancels: bool
    max_hold: float | None
    expect: int | None = None
    note: str = ""
    min_hold: float = 0.0
    trust: float = math.inf
    """How long after a request its lease is trusted, should that be less than the lease."""
    renew_every: float = math.inf
    """How often to renew, should that be more often than three times a lease."""
    patience: float = math.inf
    """How long one renewal may take, should that be less than a third of the lease."""

    ttl: int = field(init=False)
    """The lease in ms."""
    min_hold_ms: int = field(init=False)
    trusted: float = field(init=False)
    """For how long after a request its lease is certainly ours: less 1 % + 2 ms, for clocks drift."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "ttl", round(self.lease * 1000))
        put(self, "min_hold_ms", round(self.min_hold * 1000))
        put(self, "trusted", min(self.lease * 0.99 - 0.002, self.trust))

    def named(self, name: str, key: str) -> "Wish":
        """The same of another name. Where each request has its own, `dataclasses.replace` would cost too much."""
        other = object.__new__(Wish)
        vars(other).update(vars(self), name=name, key=key)
        return other


class Grant(NamedTuple):
    """A granted attempt. `asked` is the clock's time just before the request was sent."""

    token: str
    asked: float
    reply: Reply


def stale(wish: Wish, reply: Reply) -> StaleGenerationError:
    """Say that the generation is not the expected one, and which it is: none, while the resource is poisoned."""
    current = None if reply.poisoned else reply.fence
    return StaleGenerationError(f"{wish.name!r} is not at generation {wish.expect}: read it again", current)


def refusal(wish: Wish, reply: Reply) -> Exception:
    """Say why the store refuses for good."""
    if reply.verdict is Verdict.MISMATCH:
        return stale(wish, reply)
    return BackendError(f"the store refused {wish.name!r}: {reply.verdict.value}")
