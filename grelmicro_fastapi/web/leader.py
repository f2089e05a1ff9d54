"""Routes that only the leader answers."""

import inspect
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Literal, TypeVar, cast, overload

from starlette.requests import HTTPConnection

from grelmicro_fastapi.coordination.leaderelection import LeaderElection
from grelmicro_fastapi.coordination.leadership import Leadership
from grelmicro_fastapi.errors import CoordinationError, NotLeaderError
from grelmicro_fastapi.web.problems import Problem, closing, introduce, misuse, problem
from grelmicro_fastapi.web.runtime import runtime_of

L_co = TypeVar("L_co", covariant=True)


@dataclass(frozen=True, repr=False)
class LeaderDependency(Generic[L_co]):
    """A leader guard for `Depends`. Made by `leader_guard`."""

    election: LeaderElection | str
    required: bool = True

    def __post_init__(self) -> None:
        if not isinstance(cast("object", self.election), str | LeaderElection):
            raise ValueError(f"leader_guard takes an election or its name, and not {self.election!r}")
        conn = inspect.Parameter("conn", inspect.Parameter.KEYWORD_ONLY, annotation=HTTPConnection)
        object.__setattr__(self, "__signature__", inspect.Signature([conn]))

    @property
    def name(self) -> str:
        """Who leads: the name of the election."""
        return self.election if isinstance(self.election, str) else self.election.name

    def __repr__(self) -> str:
        return f"leader_guard({self.name!r}{'' if self.required else ', required=False'})"

    async def __call__(self, conn: HTTPConnection, **given: Any) -> AsyncGenerator[Any, None]:
        """What FastAPI calls: see that this process leads, and that it still did when the handler returned."""
        try:
            leadership = self._leadership(conn)
        except Problem:
            introduce(conn)
            raise
        except CoordinationError as error:
            introduce(conn)
            raise problem(error, lock=self.name) or error from error
        stack = conn.scope.get("fastapi_function_astack")
        if leadership is not None and stack is not None:
            stack.push_async_exit(_Confirm(conn, leadership).exit)
        yield leadership

    def _leadership(self, conn: HTTPConnection) -> Leadership | None:
        election = self.election
        if isinstance(election, str):
            elections = runtime_of(conn).elections
            found = elections.get(election)
            if found is None:
                raise misuse(
                    f"{self!r}: {stands_in(elections)}: add the election, or its Tasks, to Grelmicro(uses=[...])",
                    lock=self.name,
                )
            election = found
        leadership = election.leadership
        if leadership is None and self.required:
            raise NotLeaderError(f"this process does not lead {self.name!r}")
        return leadership


class _Confirm:
    __slots__ = ("conn", "leadership")

    def __init__(self, conn: HTTPConnection, leadership: Leadership) -> None:
        self.conn = conn
        self.leadership = leadership

    async def exit(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A term that ended meanwhile turns a good answer into 503; an error of the library becomes its answer."""
        try:
            if error is None:
                self.leadership.check()
            elif isinstance(error, NotLeaderError):
                raise error
        except CoordinationError as lost:
            introduce(self.conn)
            raise closing(self.conn, lost) or problem(lost, lock=self.leadership.name) or lost from lost


def stands_in(elections: Iterable[str]) -> str:
    """Say which elections the app stands in."""
    known = ", ".join(map(repr, sorted(elections)))
    return f"the app stands in {known} only" if known else "the app stands in no election"


@overload
def leader_guard(election: LeaderElection | str, *, required: Literal[True] = True) -> LeaderDependency[Leadership]: ...
@overload
def leader_guard(election: LeaderElection | str, *, required: bool) -> LeaderDependency[Leadership | None]: ...
def leader_guard(election: LeaderElection | str, *, required: bool = True) -> Any:
    """Let only the leader answer: others say 503 `not-leader`, and so does one that stops leading on the way.

    `election` is one that the app stands in, or its name. With `required=False`, `None` is bound where this process
    does not lead.
    """
    dependency: LeaderDependency[Any] = LeaderDependency(election, required)
    return dependency
