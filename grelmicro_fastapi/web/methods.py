"""One guard for a whole router: safe methods read, all others write."""

import inspect
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Unpack, cast

from starlette.requests import HTTPConnection

from grelmicro_fastapi.coordination.guards import ReadGuard, WriteGuard
from grelmicro_fastapi.web.dependencies import GuardDependency, read_guard, write_guard
from grelmicro_fastapi.web.options import ReadOptions, WriteOptions

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


@dataclass(frozen=True, repr=False)
class MethodDependency:
    """A guard by method for `Depends`. Made by `method_guard`."""

    reading: GuardDependency[ReadGuard]
    writing: GuardDependency[WriteGuard]

    def __post_init__(self) -> None:
        object.__setattr__(self, "__signature__", inspect.signature(self.writing))

    def __repr__(self) -> str:
        return repr(self.writing).replace("write_guard(", "method_guard(", 1)

    def chosen(self, method: str | None) -> GuardDependency[Any]:
        """The guard for requests of this method."""
        return self.reading if method in SAFE else self.writing

    async def __call__(self, conn: HTTPConnection, **given: Any) -> AsyncGenerator[Any, None]:
        """What FastAPI calls."""
        guard = self.chosen(conn.scope.get("method"))
        async with asynccontextmanager(guard)(conn, **given) as value:
            yield value


def method_guard(name: str, /, **options: Unpack[WriteOptions]) -> MethodDependency:
    """Read on GET, HEAD, OPTIONS and TRACE, write on every other method and on WebSockets.

        catalog = APIRouter(prefix="/catalog", dependencies=[Depends(method_guard("catalog"))])

    The options are those of `write_guard`; `if_match` is for the methods that write.
    """
    writing = write_guard(name, **options)
    # What is left are options of read guards, whatever the type says.
    reading = cast("ReadOptions", {option: value for option, value in options.items() if option != "if_match"})
    return MethodDependency(read_guard(name, **reading), writing)
