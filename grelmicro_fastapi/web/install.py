"""What an app gets besides its locks: whole answers to errors, entity tags, OpenAPI, and the lint at start-up."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ExceptionHandler

from grelmicro_fastapi.errors import GrelmicroError
from grelmicro_fastapi.web.conditional import EntityTags, NotModified
from grelmicro_fastapi.web.problems import Problem, answer

Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]


class Opens(Protocol):
    """What is known here of the app that is installed."""

    def lifespan(self, app: object) -> AbstractAsyncContextManager[Mapping[str, Any]]:
        """Open on entry, close on exit, and yield the state of requests."""
        ...


_installed: WeakKeyDictionary[Starlette, Opens] = WeakKeyDictionary()


def install(app: Starlette, micro: Opens) -> None:
    """Install once. The second time it does nothing.

    Raises `ValueError` if another one is installed, `RuntimeError` if the app has served already: it would not notice.
    """
    before = _installed.get(app)
    if before is micro:
        return
    if before is not None:
        raise ValueError("another Grelmicro is installed in this app: it can have one, with several providers")
    if app.middleware_stack is not None:
        raise RuntimeError("the app has served already: install before its first request, and outside its lifespan")
    _installed[app] = micro
    # Where the user has a handler of their own, it stays.
    for errors, handler in ((GrelmicroError, answer), (Problem, answer), (NotModified, _not_modified)):
        if errors not in app.exception_handlers:
            app.add_exception_handler(errors, cast("ExceptionHandler", handler))
    # Innermost: authentication and compression go first.
    app.user_middleware.append(Middleware(EntityTags))
    app.router.lifespan_context = _around(cast("Lifespan", app.router.lifespan_context), micro)


def _around(inner: Lifespan, micro: Opens) -> Lifespan:
    """Run the user's lifespan inside ours, so that it may use locks."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[Mapping[str, Any], None]:
        async with micro.lifespan(app) as ours:
            if inner == micro.lifespan:
                yield ours
                return
            async with inner(app) as theirs:
                # A lifespan may yield nothing.
                yield {**(theirs or {}), **ours}

    return lifespan


async def _not_modified(conn: HTTPConnection, error: Exception) -> Response:
    return Response(status_code=304, headers=getattr(error, "headers", None))
