"""The nouns of the law: what a store keeps for a key, what may be asked of it, and what it answers.

Instants and lengths are whole milliseconds, instants on the store's own clock. A lease is live while `until > now`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from types import MethodType
from typing import Any, NamedTuple, TypeVar, cast

T = TypeVar("T")

VERSION = 1
"""The version of the law. A state written by a newer one is refused, never guessed at."""
CLAIM = 250
"""The shortest window, in ms, that a called seat has to come."""
GRAVE = 30_000
"""How long, in ms, an undone token is refused: longer than a request can still be on its way."""


class Mode(StrEnum):
    """How a key is wanted."""

    READ = "r"
    WRITE = "w"


class Poison(StrEnum):
    """What a leaving writer says of the resource."""

    CLEAR = "clear"
    """The body succeeded: whatever was broken is whole again."""
    KEEP = "keep"
    """The body raised: the resource is as it was found."""
    SET = "set"
    """The writer says that it left the resource broken."""


@dataclass(slots=True)
class Writer:
    """Who writes. An empty token is a cooldown: nobody's lease, kept so that nobody enters yet."""

    token: str
    since: int
    until: int
    note: str = ""
    poisoned: bool = False


@dataclass(slots=True)
class Seat:
    """One process's place in the queue of one mode.

    `called` is until when the seat is expected, or 0: once past, it has lapsed and holds nobody back. `grace` is
    the least window it gets, doubled each time it lapses, so that a slow process gets in without slowing the rest.
    """

    id: str
    mode: Mode
    until: int
    turn: bool = False
    called: int = 0
    grace: int = 0


@dataclass(slots=True)
class State:
    """All that a store keeps for a key. `seats` are in order of arrival."""

    fence: int = 0
    poisoned: bool = False
    writer: Writer | None = None
    readers: dict[str, int] = field(default_factory=dict[str, int])
    seats: list[Seat] = field(default_factory=list[Seat])
    graves: dict[str, int] = field(default_factory=dict[str, int])
    claimant: str = ""
    touched: int = 0
    version: int = VERSION


class Acquire(NamedTuple):
    """Ask for a lease. Asked again with the same token it is the same grant, as long as that lives.

    After its end it would be a new grant, which a late Release of the first would end, and poison with it. So a caller
    who does not know what became of his Acquire undoes the token and asks with another.

    `seat` (or "") is where to wait, for `place` ms unless refreshed; `more` says that others of that seat follow:
    readers in this batch, a writer when this one leaves. With `expect`, only if that is still the fence and nothing is
    poisoned.
    """

    token: str
    mode: Mode
    ttl: int
    seat: str = ""
    place: int = 3_000
    more: bool = False
    expect: int | None = None
    note: str = ""


class Renew(NamedTuple):
    """Let a live lease last `ttl` ms from now. Never shortens, grants or revives."""

    token: str
    ttl: int


class Downgrade(NamedTuple):
    """Make the writer a reader in one step, under the same fence. Publishes: poison ends as with a clean release."""

    token: str
    ttl: int


class Release(NamedTuple):
    """Give a lease back. A writer stays as a cooldown until `min_hold` ms after its grant."""

    token: str
    min_hold: int = 0
    poison: Poison = Poison.CLEAR


class Undo(NamedTuple):
    """Make it as if the token had never been granted, and refuse it from now on."""

    token: str


class Leave(NamedTuple):
    """Give a seat up."""

    seat: str


class Advance(NamedTuple):
    """Move the fence to `to`, an instant that has come: claims a tick for one process of the fleet."""

    token: str
    to: int


class Force(NamedTuple):
    """The operator ends every hold. A writer's end poisons."""


class Mend(NamedTuple):
    """The operator clears the poison."""


class Vacate(NamedTuple):
    """Bury the dead, nothing else. Granted if there were any."""


class Purge(NamedTuple):
    """May the name be dropped? Granted if nothing is in it, it is not poisoned and no tick, and idle for `idle` ms."""

    idle: int


Command = Acquire | Renew | Downgrade | Release | Undo | Leave | Advance | Force | Mend | Vacate | Purge


class Verdict(StrEnum):
    """What became of a command."""

    GRANTED = "granted"
    HELD = "held"
    """Somebody is in the way."""
    GONE = "gone"
    """There is no such lease (any more)."""
    BURIED = "buried"
    """The token was undone before."""
    MISMATCH = "mismatch"
    """The fence is not the expected one, or the resource is poisoned."""
    LATE = "late"
    """The tick is taken, or lies behind."""
    EARLY = "early"
    """The tick lies ahead of the store's clock."""
    NEWER = "newer"
    """The state was written by a newer law."""


class Reply(NamedTuple):
    """The verdict, and what the asker needs to know.

    `poisoned` is what this lease found. After a refusal, `retry` is in how many ms time alone may change the answer
    (0: not by time). `seated` says that the seat of this Acquire is in the queue. `wakes` are the seats to tell,
    each with a delay in ms.
    """

    verdict: Verdict
    fence: int
    poisoned: bool = False
    retry: int = 0
    seated: bool = False
    wakes: tuple[tuple[str, int], ...] = ()


def maker(kind: type[T]) -> Callable[[tuple[Any, ...]], T]:
    """A constructor of a named tuple from all of its values: less than half the cost of the usual one."""
    return cast("Callable[[tuple[Any, ...]], T]", MethodType(tuple.__dict__["__new__"], kind))


# For the two commands, and their replies, that every uncontended hold is made of.
made_acquire = maker(Acquire)
made_release = maker(Release)
made_reply = maker(Reply)
