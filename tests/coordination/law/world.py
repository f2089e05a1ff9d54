"""A whole situation as a value: the store, the callers, and what is on its way between them.

Times and fences are relative, "so many ticks left" and "so many grants ago", so that histories which differ only in
when they happened are one.
"""

from typing import Any, NamedTuple

from grelmicro_fastapi.coordination.state import Poison

from .frozen import Frozen

TTL, PLACE, CLAIM, LIFE = 2, 3, 1, 2
"""In ticks. A message lives shorter than a grave."""
IDLE, ASKING, REFUSED, HOLDING, DOWNGRADING, CRASHED = "idle", "asking", "refused", "holding", "downgrading", "crashed"


class Caller(NamedTuple):
    """One process. `open` Acquires have no reply yet; its grant is good for `left` ticks; `errands` are to be done."""

    phase: str = IDLE
    attempt: int = 0
    reads: bool = False
    open: int = 0
    granted: bool = False
    poisoned: bool = False
    left: int = 0
    fence: int = 0
    errands: tuple["Message", ...] = ()


class Message(NamedTuple):
    """A request (kind in capitals) or its reply, `age` ticks after the request was sent."""

    kind: str
    caller: int
    attempt: int
    age: int = 0
    body: Any = None


class World(NamedTuple):
    """A whole situation. `delivered`: the writer's caller has the grant. `owed`: why there must be poison, or ""."""

    store: Frozen
    callers: tuple[Caller, ...]
    network: tuple[Message, ...] = ()
    top: int = 0
    delivered: bool = False
    owed: str = ""
    ticks: int = 0
    doubts: int = 0
    quits: int = 0
    crashes: int = 0


class Scope(NamedTuple):
    """What happens at most: the attempts of each process (W, R, or D for a write that downgrades), and the faults."""

    attempts: tuple[str, ...]
    ticks: int = 0
    doubts: int = 0
    quits: int = 0
    crashes: int = 0
    bodies: tuple[Poison, ...] = (Poison.CLEAR,)
    seats: bool = True
    hasty: bool = False
    """Callers break the protocol: they believe a grant while another copy of their Acquire is still on its way."""


def heeds(caller: Caller, reply: Message) -> bool:
    """Does anybody still wait for that reply?"""
    if reply.kind in "ad":
        return reply.attempt == caller.attempt and caller.phase == (ASKING if reply.kind == "a" else DOWNGRADING)
    return any(reply.kind == errand.kind.lower() and reply.attempt == errand.attempt for errand in caller.errands)
