"""Guards as FastAPI dependencies: `Annotated[WriteGuard, Depends(write_guard("catalog"))]`.

What a factory returns is a value: two with equal options are equal. So FastAPI caches them as one dependency, and
`app.dependency_overrides` finds them.
"""

import inspect
from collections.abc import AsyncGenerator, Awaitable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Generic, Literal, TypeVar, Unpack, overload

from fastapi import Depends, Response, params
from starlette.requests import HTTPConnection

from grelmicro_fastapi.coordination.guards import LockHandle, ReadGuard, WriteGuard
from grelmicro_fastapi.web.acquisition import Acquisition, Use
from grelmicro_fastapi.web.option_types import refuse_unknown
from grelmicro_fastapi.web.options import GuardOptions, LockOptions, Mode, ReadOptions, WriteOptions

G_co = TypeVar("G_co", covariant=True)

_FUNCTION_STACK: Final = "fastapi_function_astack"
"""Where FastAPI keeps what ends with the handler. Private: without it a lock is held until the response is sent."""


@dataclass(frozen=True, repr=False)
class GuardDependency(Generic[G_co]):
    """A guard for `Depends`. Made by `read_guard`, `write_guard` and `lock_guard`."""

    options: GuardOptions

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "_acquisition", Acquisition(self.options))
        put(self, "__signature__", self._signature())
        put(self, "__name__", repr(self))

    def __hash__(self) -> int:
        return hash(self.options)

    def __repr__(self) -> str:
        return repr(self.options)

    async def __call__(self, conn: HTTPConnection, **given: Any) -> AsyncGenerator[G_co, None]:
        """What FastAPI calls: acquire, hand over, release."""
        use = await self._use(conn, given, streams=_streams(conn.scope.get("endpoint")))
        ends_with_handler = conn.scope.get(_FUNCTION_STACK)
        if ends_with_handler is not None and self.options.hold == "handler":
            ends_with_handler.push_async_exit(use.exit)
            yield use.value
            return
        if ends_with_handler is not None:
            ends_with_handler.push_async_exit(use.confirm)
        try:
            yield use.value
        except BaseException as error:
            await use.end(error)
            raise
        else:
            await use.end(None, answered=True)

    def held(self, conn: HTTPConnection, *, name: str | None = None) -> AbstractAsyncContextManager[G_co]:
        """The same without FastAPI's `Depends`: `async with write_guard("x").held(request) as guard`.

        Placeholders are taken from the path. `requires=` is not looked at; where the guard has a `key=`, pass the
        `name` it would have returned.
        """
        if self.options.key is not None and name is None:
            raise TypeError(f"{self!r}: held() does not solve dependencies, so pass the name= that key= would return")
        return self._held(conn, name)

    @asynccontextmanager
    async def _held(self, conn: HTTPConnection, name: str | None) -> AsyncGenerator[G_co, None]:
        use = await self._use(conn, {} if name is None else {"key": name}, streams=False)
        try:
            yield use.value
        except BaseException as error:
            await use.end(error)
            raise
        else:
            await use.end(None)

    def _use(self, conn: HTTPConnection, given: dict[str, Any], *, streams: bool) -> Awaitable[Use]:
        acquisition: Acquisition = self.__dict__["_acquisition"]
        return acquisition.use(conn, given.get("key"), given.get("response"), streams=streams)

    def _signature(self) -> inspect.Signature:
        by_name = inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter("conn", by_name, annotation=HTTPConnection)]
        if self.options.etag:
            parameters.append(inspect.Parameter("response", by_name, annotation=Response))
        for number, needed in enumerate(self.options.requires):
            depends = needed if isinstance(needed, params.Depends) else Depends(needed)
            parameters.append(inspect.Parameter(f"requires_{number}", by_name, default=depends, annotation=Any))
        if self.options.key is not None:
            parameters.append(inspect.Parameter("key", by_name, default=Depends(self.options.key), annotation=Any))
        return inspect.Signature(parameters)


@overload
def read_guard(
    name: str, /, *, required: Literal[True] = True, **options: Unpack[ReadOptions]
) -> GuardDependency[ReadGuard]: ...
@overload
def read_guard(
    name: str, /, *, required: bool, **options: Unpack[ReadOptions]
) -> GuardDependency[ReadGuard | None]: ...
@overload
def read_guard(
    name: str, second: str, /, *names: str, required: Literal[True] = True, **options: Unpack[ReadOptions]
) -> GuardDependency[tuple[ReadGuard, ...]]: ...
@overload
def read_guard(
    name: str, second: str, /, *names: str, required: bool, **options: Unpack[ReadOptions]
) -> GuardDependency[tuple[ReadGuard, ...] | None]: ...
def read_guard(name: str, /, *names: str, required: bool = True, **options: Unpack[ReadOptions]) -> Any:
    """Hold names for reading: nobody writes them meanwhile. See `LockOptions` and `ReadOptions` for the options.

    Several names are taken in sorted order and bind a tuple. With `required=False`, `None` is bound where the request
    would be refused because the lock is busy. Raises `ValueError` if an option makes no sense.
    """
    return _make("read", (name, *names), required, options)


@overload
def write_guard(
    name: str, /, *, required: Literal[True] = True, **options: Unpack[WriteOptions]
) -> GuardDependency[WriteGuard]: ...
@overload
def write_guard(
    name: str, /, *, required: bool, **options: Unpack[WriteOptions]
) -> GuardDependency[WriteGuard | None]: ...
@overload
def write_guard(
    name: str, second: str, /, *names: str, required: Literal[True] = True, **options: Unpack[WriteOptions]
) -> GuardDependency[tuple[WriteGuard, ...]]: ...
@overload
def write_guard(
    name: str, second: str, /, *names: str, required: bool, **options: Unpack[WriteOptions]
) -> GuardDependency[tuple[WriteGuard, ...] | None]: ...
def write_guard(name: str, /, *names: str, required: bool = True, **options: Unpack[WriteOptions]) -> Any:
    """Hold names for writing: nobody reads or writes them meanwhile. See `WriteOptions`, and `read_guard`."""
    return _make("write", (name, *names), required, options)


@overload
def lock_guard(
    name: str, /, *, required: Literal[True] = True, **options: Unpack[LockOptions]
) -> GuardDependency[LockHandle]: ...
@overload
def lock_guard(
    name: str, /, *, required: bool, **options: Unpack[LockOptions]
) -> GuardDependency[LockHandle | None]: ...
@overload
def lock_guard(
    name: str, second: str, /, *names: str, required: Literal[True] = True, **options: Unpack[LockOptions]
) -> GuardDependency[tuple[LockHandle, ...]]: ...
@overload
def lock_guard(
    name: str, second: str, /, *names: str, required: bool, **options: Unpack[LockOptions]
) -> GuardDependency[tuple[LockHandle, ...] | None]: ...
def lock_guard(name: str, /, *names: str, required: bool = True, **options: Unpack[LockOptions]) -> Any:
    """Hold the plain `Lock` of those names. See `LockOptions`, and `read_guard`."""
    return _make("lock", (name, *names), required, options)


def _make(mode: Mode, names: tuple[str, ...], required: bool, options: Any) -> GuardDependency[Any]:
    # Some of these are not for every guard, which says so itself.
    refuse_unknown(f"{mode}_guard", options, WriteOptions.__annotations__)
    return GuardDependency(GuardOptions(mode=mode, names=names, required=required, **options))


def _streams(endpoint: object) -> bool:
    try:
        return _yields(endpoint)
    except TypeError:  # an endpoint that cannot be hashed is looked at each time
        return _yields.__wrapped__(endpoint)


@lru_cache(maxsize=1024)
def _yields(endpoint: object) -> bool:
    call: object = endpoint
    if callable(endpoint) and not inspect.isroutine(endpoint):
        call = type(endpoint).__call__
    return inspect.isasyncgenfunction(call) or inspect.isgeneratorfunction(call)
