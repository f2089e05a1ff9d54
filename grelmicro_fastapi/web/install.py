"""What an app gets besides its locks: whole answers to errors, entity tags, OpenAPI, and the lint at start-up."""

import logging
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ExceptionHandler

from grelmicro_fastapi.errors import CoordinationError, GrelmicroError
from grelmicro_fastapi.web.conditional import EntityTags, NotModified
from grelmicro_fastapi.web.lint import lint
from grelmicro_fastapi.web.openapi import document
from grelmicro_fastapi.web.problems import Problem, answer

Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]


class Opens(Protocol):
    """What is known here of the app that is installed."""

    def lifespan(self, app: object) -> AbstractAsyncContextManager[Mapping[str, Any]]:
        """Open on entry, close on exit, and yield the state of requests."""
        ...

    @property
    def elections(self) -> Collection[str]:
        """The names of those that the app stands in."""
        ...


_log = logging.getLogger("grelmicro_fastapi.lint")

_installed: WeakKeyDictionary[Starlette, Opens] = WeakKeyDictionary()


def install(app: Starlette, micro: Opens, *, strict: bool = False) -> None:
    """Install once. The second time it does nothing. If `strict`, the app does not start on a finding of the lint.

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
    if isinstance(app, FastAPI):
        document(app)
    app.router.lifespan_context = _around(cast("Lifespan", app.router.lifespan_context), micro, strict)


def installed_in(app: Any) -> Opens | None:
    """What is installed in this app."""
    return _installed.get(app)


def _around(inner: Lifespan, micro: Opens, strict: bool) -> Lifespan:
    """Run the user's lifespan inside ours, so that it may use locks."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[Mapping[str, Any], None]:
        _report(app, micro, strict)
        async with micro.lifespan(app) as ours:
            if inner == micro.lifespan:
                yield ours
                return
            async with inner(app) as theirs:
                # A lifespan may yield nothing.
                yield {**(theirs or {}), **ours}

    return lifespan


def _report(app: Starlette, micro: Opens, strict: bool) -> None:
    try:
        findings = lint(app, micro.elections)
    except Exception:
        if strict:
            raise
        # What cannot be looked at may still work well.
        _log.warning("the guards of this app could not be looked at", exc_info=True)
        return
    if findings and strict:
        raise CoordinationError("guards are used in ways that go badly:\n" + "\n".join(map(str, findings)))
    for finding in findings:
        _log.warning("%s", finding, extra={"finding": finding.code})


async def _not_modified(conn: HTTPConnection, error: Exception) -> Response:
    return Response(status_code=304, headers=getattr(error, "headers", None))
