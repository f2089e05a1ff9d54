"""What can be said of a guard, by keyword, and as the value that makes two guards equal."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypedDict

from fastapi import params

from grelmicro_fastapi.coordination.backend import Source
from grelmicro_fastapi.web.option_types import refuse_other_types

Mode = Literal["read", "write", "lock"]
Held = Literal["handler", "response"]
Match = Literal["optional", "required"]
Requirement = Callable[..., Any] | params.Depends


class LockOptions(TypedDict, total=False):
    """What can be said of every guard."""

    wait: float | None
    """Seconds to wait for the lock, 5. `None`: without end. 0: one attempt."""
    hold: Held
    """Release when the "handler" returns, or after the "response" and its background tasks; "handler"."""
    lease_duration: float | None
    """Seconds that a hold lasts without renewal, as in `ReadWriteLock`."""
    keep_alive: bool
    """Renew the lease as long as the request runs, True."""
    max_hold: float | None
    """Seconds after which renewal stops and the guard is lost. None: no bound."""
    on_lost: Literal["fail", "cancel"]
    """`cancel` also cancels an `async` handler when the lease is lost; "fail"."""
    requires: Sequence[Requirement]
    """Dependencies that must pass before the lock is taken, such as the one that checks who asks."""
    key: Callable[..., Any] | None
    """A dependency that returns the whole name. The name given is its label in answers and metrics then."""
    backend: Source | None
    """A provider or `Coordination`, instead of the app's."""
    status: int
    """The status of the answer if the lock is busy, 409."""


class ReadOptions(LockOptions, total=False):
    """What can be said of guards of a read-write lock."""

    etag: bool
    """Send the generation as `ETag`, and answer a read whose `If-None-Match` names it with 304; False."""


class WriteOptions(ReadOptions, total=False):
    """What can be said of write guards."""

    if_match: Match | None
    """Compare the client's `If-Match` with the generation before anything is changed: "optional" or "required"."""


@dataclass(frozen=True, repr=False)
class GuardOptions:
    """All of it. Raises `ValueError` if something makes no sense."""

    mode: Mode
    names: tuple[str, ...]
    required: bool = True
    wait: float | None = 5.0
    hold: Held = "handler"
    lease_duration: float | None = None
    keep_alive: bool = True
    max_hold: float | None = None
    on_lost: Literal["fail", "cancel"] = "fail"
    requires: tuple[Requirement, ...] = ()
    key: Callable[..., Any] | None = None
    backend: Source | None = None
    status: int = 409
    etag: bool = False
    if_match: Match | None = None
    _hash: int = field(default=0, init=False, compare=False)

    def __post_init__(self) -> None:
        self._refuse_nonsense()
        object.__setattr__(self, "requires", tuple(self.requires))
        # FastAPI looks a dependency up several times in each request.
        object.__setattr__(self, "_hash", hash(tuple(self._hashable())))

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        said = [repr(name) for name in self.names]
        for one in fields(self)[2:-1]:
            value = getattr(self, one.name)
            if value != one.default and one.name != "backend":
                said.append(f"{one.name}={getattr(value, '__name__', None) or repr(value)}")
        return f"{self.mode}_guard({', '.join(said)})"

    def _hashable(self) -> list[object]:
        values = [getattr(self, one.name) for one in fields(self)[:-1] if one.name != "requires"]
        # Older FastAPI's `Depends` has no hash.
        calls = [needed.dependency if isinstance(needed, params.Depends) else needed for needed in self.requires]
        return [*values, *calls]

    def _refuse_nonsense(self) -> None:
        refuse_other_types(self, self.names)
        if not self.names:
            raise ValueError("a guard needs a name")
        if self.wait is not None and not 0 <= self.wait < math.inf:
            raise ValueError(f"{self!r}: wait is in seconds, at least 0, or None to wait without end")
        if self.hold not in ("handler", "response"):
            raise ValueError(f"{self!r}: hold is 'handler' or 'response'")
        if self.on_lost not in ("fail", "cancel"):
            raise ValueError(f"{self!r}: on_lost is 'fail' or 'cancel'")
        if not 400 <= self.status <= 599:
            raise ValueError(f"{self!r}: status is that of an error, 400 to 599")
        if self.if_match not in (None, "optional", "required"):
            raise ValueError(f"{self!r}: if_match is 'optional', 'required' or None")
        if self.if_match is not None and self.mode != "write":
            raise ValueError(f"{self!r}: if_match= is for a write guard")
        if self.etag and self.mode == "lock":
            raise ValueError(f"{self!r}: a plain lock has no generation, so etag= is for read and write guards")
        if len(self.names) > 1 and (self.key is not None or self.if_match is not None):
            raise ValueError(f"{self!r}: key= and if_match= are for a guard of one name")
