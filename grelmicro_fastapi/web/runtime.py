"""Which app answers for a request."""

from collections.abc import Mapping
from typing import Protocol, cast

from starlette.requests import HTTPConnection

from grelmicro_fastapi import context
from grelmicro_fastapi.coordination.backend import Source
from grelmicro_fastapi.coordination.leaderelection import LeaderElection
from grelmicro_fastapi.errors import NotRunningError


class Runtime(Protocol):
    """The app as the running loop has it open."""

    @property
    def coordination(self) -> Source | None:
        """What answers for the app's locks."""

    @property
    def elections(self) -> Mapping[str, LeaderElection]:
        """Those that the app stands in, by name."""
        ...

    @property
    def draining(self) -> bool:
        """True from the moment the server was told to stop, or the lifespan ends."""
        ...


def runtime_of(conn: HTTPConnection) -> Runtime:
    """The app that answers for this request: that of its state, else the one that is open on this loop.

    It is a dependency too: `Annotated[Runtime, Depends(runtime_of)]`. Raises `NotRunningError` if no app is open.
    """
    state = conn.scope.get("state")
    return cast("Runtime", (state and state.get("grelmicro")) or context.current())


def source_of(conn: HTTPConnection) -> Source:
    """Where that app keeps its locks. Raises `NotRunningError` if it has no such place."""
    source = runtime_of(conn).coordination
    if source is None:
        raise NotRunningError(
            "the open app has no Coordination: add a provider to Grelmicro(uses=[...]), or pass backend="
        )
    return source
