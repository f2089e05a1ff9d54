"""The waist: what the law needs of a place that keeps states, and nothing more.

A store decides nothing. It loads a state, lets the law (`rules.step`, or its port that lives in the store) advance
it in one atomic step, saves it, and tells the seats that the reply names.
"""

from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol, runtime_checkable

from grelmicro_fastapi.coordination.state import Command, Mode, Reply, State
from grelmicro_fastapi.coordination.uncontended import Found
from grelmicro_fastapi.errors import BackendError


class Scope(IntEnum):
    """How far a store's word reaches. They compare: `Scope.HOST < Scope.CLUSTER`."""

    PROCESS = 1
    HOST = 2
    CLUSTER = 3


class Ask(NamedTuple):
    """One command for one key. `claim` is the window, in ms, that a called seat has to come (see `rules`)."""

    key: str
    command: Command
    claim: int


class Wake(NamedTuple):
    """Tells a seat to ask again, now or `after` so many ms unless something else wakes it first."""

    key: str
    seat: str
    after: int


class Snapshot(NamedTuple):
    """A state as it is kept (the dead may still be in it), and the store's clock in ms at that moment."""

    state: State
    now: int


Answer = Reply | BackendError
"""What became of one ask: the law's reply, or why the store could not apply it."""

Woken = Callable[[Wake | None], None]
"""Called on the loop that listens; `None` wakes everybody, for the channel was broken and something may be lost."""


class Store(Protocol):
    """One process's and one loop's connection to a place that keeps states."""

    @property
    def scope(self) -> Scope:
        """How far its word reaches."""
        ...

    @property
    def place(self) -> float:
        """Seconds that a seat lasts without asking."""
        ...

    @property
    def channel(self) -> str:
        """Names this store object among all that share the states. Its seats are `{channel}/r` and `{channel}/w`."""
        ...

    async def open(self) -> None:
        """Connect. Raises `BackendError` if the store is down; may be called again, also after `close`."""
        ...

    async def close(self) -> None:
        """Give every connection back. Safe to call twice."""
        ...

    def lane(self, key: str) -> Hashable:
        """What may travel together: asks of one lane go in one `apply`, one batch at a time."""
        ...

    async def apply(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        """Let the law advance each key, each atomically, in the order given. A failed ask fails alone.

        Raises `BackendError` if nothing is known of any of them. The caller is always a task of the library, which
        bounds the call in time by cancelling it: after that the store must be usable again, and may be called from
        another lane meanwhile.
        """
        ...

    async def peek(self, key: str) -> Snapshot:
        """Read one state and the store's clock, changing nothing."""
        ...

    def keys(self, prefix: str) -> AsyncIterator[str]:
        """Every key kept that starts with `prefix`, in no order."""
        ...

    async def listen(self, woken: Woken) -> None:
        """Report wakes for this store's seats until cancelled, reconnecting by itself.

        Returns, or raises `BackendError`, only if wakes can never be heard here: then waiters poll.
        """
        ...

    async def vacate(self) -> int:
        """Bury what is dead, in place, nothing else. How many keys changed."""
        ...

    async def purge(self, idle: float) -> int:
        """Drop names idle for so many seconds; how many. One that comes back starts above every fence it had."""
        ...


Landed = Callable[[Sequence[Answer] | BackendError], None]
"""Called once with the answers of a batch, or with why nothing is known of any of them; never before it has left."""


class Flight(Protocol):
    """A batch that is under way."""

    def follow(self, asks: Sequence[Ask], landed: Landed) -> "Flight | None":
        """Send another right behind, which cannot overtake it. None if nothing was sent, for that is not possible."""
        ...

    def abandon(self) -> None:
        """Give it up: what it travels on cannot be used any more. What follows it hears that."""
        ...


@runtime_checkable
class SwiftStore(Protocol):
    """A store whose requests can leave in the very step that makes them, instead of a few turns of the loop later."""

    @property
    def operation(self) -> float:
        """Seconds that a batch may take before it is abandoned."""
        ...

    def send(self, asks: Sequence[Ask], landed: Landed) -> Flight | None:
        """Send without waiting; None if nothing was sent, for no connection is ready: then `apply` is the way."""
        ...


@runtime_checkable
class DirectStore(Protocol):
    """A store in our own memory: callers carry their own commands, for no cancellation can come between."""

    def at_once(self, key: str, command: Command, claim: int) -> Answer:
        """Let the law advance one key, now."""
        ...

    def enter(self, key: str, token: str, mode: Mode, ttl: int, note: str) -> Found | None:
        """Grant an Acquire by the law's short way. None, and nothing was done, if that does not lead there."""
        ...

    def leave(self, key: str, token: str) -> bool:
        """Grant a Release that has no `min_hold` and clears the poison, by the same way and on the same terms."""
        ...
