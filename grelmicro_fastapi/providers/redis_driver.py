"""What we need of redis-py and valkey-py, which are siblings: so one store serves both. Imports neither.

We take only connections from them, not their clients. A client may send a command twice when it is in doubt, and
keeps a connection whose caller was cancelled; both are wrong for a lock.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol


class Connection(Protocol):
    """A connection of either library."""

    @property
    def is_connected(self) -> bool:
        """False until `connect`, and after a failure."""
        ...

    async def connect(self) -> None:
        """Connect, authenticate and select the database."""

    async def disconnect(self, nowait: bool = False) -> None:
        """Hang up."""

    async def send_packed_command(self, command: Iterable[bytes], check_health: bool = True) -> None:
        """Send bytes."""

    async def read_response(self, disable_decoding: bool = False, *, disconnect_on_error: bool = True) -> Any:
        """Read one answer. Raises the error that the server answered with."""


class Pool(Protocol):
    """A recipe for connections."""

    @property
    def connection_class(self) -> Callable[..., Any]:
        """What makes one."""
        ...

    @property
    def connection_kwargs(self) -> Mapping[str, Any]:
        """With which options."""
        ...


# How our connections differ from those of a client. The timeouts are ours, around the whole exchange.
_OURS: Mapping[str, object] = {
    "protocol": 2,
    "decode_responses": False,
    "encoding": "utf-8",
    "encoding_errors": "strict",
    "health_check_interval": 0,
    "retry_on_timeout": False,
    "retry_on_error": [],
    "socket_timeout": None,
}


@dataclass(frozen=True)
class Driver:
    """One of the two libraries."""

    name: str
    failures: tuple[type[Exception], ...]
    """Whatever it raises."""
    answers: type[Exception]
    """An error that the server answered with."""
    codes: Mapping[type[Exception], str]
    """The classes from whose text the library takes the code off."""
    never: object
    """Its way to say that nothing is tried twice."""

    @property
    def lost(self) -> tuple[type[Exception], ...]:
        """Whatever a connection may end with."""
        return (OSError, TimeoutError, *self.failures)

    def recipe(self, pool: Pool, **more: object) -> Callable[[], Connection]:
        """Make connections like those of a pool, but ours: they never send anything twice."""
        ours = {**_OURS, "retry": self.never, **more}
        if "host" in more:
            # What a cluster's client does on connecting is about reading from replicas.
            ours |= {name: None for name in pool.connection_kwargs if name.endswith("_connect_func")}
        # Notices of maintenance come with a protocol that we do not speak.
        kept = {name: value for name, value in pool.connection_kwargs.items() if not name.startswith("maint_")}
        options = {**kept, **ours}

        def make() -> Connection:
            # A Sentinel's pool must live as long as its connections: they ask it where to connect to.
            made: Connection = pool.connection_class(**options)
            return made

        return make

    def code(self, error: Exception) -> str:
        """The first word of what the server answered, such as NOSCRIPT."""
        for kind, code in self.codes.items():
            if isinstance(error, kind):
                return code
        text = str(error)
        if "Error running script" in text:
            # Servers before 7 wrap it.
            return next((code for code in REFUSALS if code in text), "")
        if "previous master is now a" in text:
            # A connection from a Sentinel's pool hides it.
            return "READONLY"
        word = text.partition(" ")[0]
        return word if word.isupper() else ""


def codes(exceptions: ModuleType) -> dict[type[Exception], str]:
    """The classes of a library from whose text it takes the code off; the narrower ones first."""
    named = {
        "NoScriptError": "NOSCRIPT",
        "ReadOnlyError": "READONLY",
        "BusyLoadingError": "LOADING",
        "MovedError": "MOVED",
        "AskError": "ASK",
        "TryAgainError": "TRYAGAIN",
        "MasterDownError": "MASTERDOWN",
        "ClusterDownError": "CLUSTERDOWN",
        "OutOfMemoryError": "OOM",
        "NoPermissionError": "NOPERM",
        "AuthenticationError": "NOAUTH",
    }
    return {getattr(exceptions, name): code for name, code in named.items() if hasattr(exceptions, name)}


REFUSALS = frozenset(
    {
        *("NOSCRIPT", "READONLY", "LOADING", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "BUSY"),
        *("OOM", "NOPERM", "NOAUTH", "WRONGPASS", "MISCONF", "NOREPLICAS", "WRONGTYPE", "DENIED"),
    }
)
"""With these the server says that it has not run the script, or that the script has not written yet."""
