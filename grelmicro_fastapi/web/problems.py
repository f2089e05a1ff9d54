"""What a client is told when it cannot have what it asked for: problem details (RFC 9457), one table.

An answer is both the error of the library and an `HTTPException`: it needs nothing installed, it works in mounted
sub-apps and before a WebSocket is accepted, and an exception handler for either kind finds it.
"""

import logging
import math
import types
from collections.abc import MutableMapping
from typing import Any, Final, NamedTuple, cast

from fastapi import HTTPException
from fastapi.exception_handlers import http_exception_handler
from starlette.exceptions import WebSocketException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket, WebSocketState

from grelmicro_fastapi import errors

MEDIA_TYPE: Final = "application/problem+json"
TYPE: Final = "urn:grelmicro-fastapi:problem:"
"""What every `type` starts with. The word after it never changes its meaning."""
_LONGEST_RETRY: Final = 30
_TRY_AGAIN_LATER: Final = 1013

_log = logging.getLogger("grelmicro_fastapi.web")


class Kind(NamedTuple):
    """One row of the table. `retry` says that the same request may succeed later, and after how many seconds."""

    status: int
    type: str
    title: str
    detail: str
    retry: float | None = None


CONTENDED = Kind(409, "lock-contended", "Somebody else holds the lock", "It is busy. Send the same request later.", 1)
FENCED = Kind(409, "fenced", "A newer holder has written", "Read the resource again, then decide.")
STALE = Kind(412, "generation-mismatch", "The resource has changed", "Read the resource again, then decide.")
UNCONDITIONAL = Kind(428, "precondition-required", "This write must be conditional", "Send If-Match with the ETag.")
UNAVAILABLE = Kind(503, "coordination-unavailable", "The locks cannot be reached", "Send the same request later.", 1)
DRAINING = Kind(503, "shutting-down", "This process is shutting down", "Send the same request again.", 1)
FOLLOWER = Kind(503, "not-leader", "This process does not lead", "Another process can answer this.", 1)
CROWDED = Kind(503, "lock-queue-full", "Too many requests wait for the lock", "Send the same request later.", 2)
LOST = Kind(503, "guard-lost", "The lock was lost on the way", "It may have been done: read the resource, then decide.")
MISUSE = Kind(500, "guard-misuse", "A guard is used in a way that cannot work", "The server's log says how.")

_KINDS: Final[dict[type[Exception], Kind]] = {
    errors.WouldBlockError: CONTENDED,
    errors.FencedError: FENCED,
    errors.StaleGenerationError: STALE,
    errors.PreconditionRequiredError: UNCONDITIONAL,
    errors.BackendError: UNAVAILABLE,
    errors.NotRunningError: UNAVAILABLE,
    errors.DrainingError: DRAINING,
    errors.NotLeaderError: FOLLOWER,
    errors.QueueFullError: CROWDED,
    errors.LockNotOwnedError: LOST,
    errors.LockReentrantError: MISUSE,
    errors.LockUpgradeError: MISUSE,
}


_answers: dict[type[Exception], "type[Problem]"] = {}


class Problem(HTTPException):
    """An answer of the table. `lock` is the name as the route writes it, never a resolved one."""

    kind: Kind
    lock: str | None
    retry_after: float | None

    def document(self) -> dict[str, object]:
        """The body of the answer."""
        document: dict[str, object] = {
            "type": TYPE + self.kind.type,
            "title": self.kind.title,
            "status": self.status_code,
            "detail": self.detail,
        }
        if self.lock is not None:
            document["lock"] = self.lock
        if "retry-after" in (self.headers or {}):
            document["retry_after"] = int((self.headers or {})["retry-after"])
        return document


def problem(
    error: Exception, *, lock: str | None = None, status: int | None = None, etag: str | None = None
) -> Problem | None:
    """The answer to an error of this library, or `None` if the table has none. `status` is for a busy lock only."""
    if isinstance(error, Problem):
        return error
    kind = kind_of(error)
    if kind is None:
        return None
    if kind is MISUSE:
        _log.error("guard-misuse on %s: %s", lock or "a route", error)
    detail = kind.detail
    if isinstance(error, errors.NotRunningError):
        # Nobody opened the app: whoever reads this is setting it up, and the text says what to do.
        _log.error("%s", error)
        detail = str(error)
    answers = _answer_class(type(error))
    answer = answers.__new__(answers)
    # What the error carries (`current`, `name`) goes along, for handlers that look for it.
    answer.__dict__.update(vars(error))
    return _fill(answer, kind, detail, lock, status, etag)


def misuse(message: str, *, lock: str | None = None) -> Problem:
    """The answer where the server's own code is wrong. The message goes to the log, not to the client."""
    _log.error("guard-misuse on %s: %s", lock or "a route", message)
    return _fill(Problem.__new__(Problem), MISUSE, MISUSE.detail, lock, None, None)


def kind_of(error: BaseException) -> Kind | None:
    """The row of the table for this error."""
    if isinstance(error, Problem):
        return error.kind
    return next((_KINDS[base] for base in type(error).__mro__ if base in _KINDS), None)


def _fill(answer: Problem, kind: Kind, detail: str, lock: str | None, status: int | None, etag: str | None) -> Problem:
    code = status if status is not None and kind is CONTENDED else kind.status
    headers = {"content-type": MEDIA_TYPE, "cache-control": "no-store"}
    if kind.retry is not None:
        hint = vars(answer).get("retry_after") or kind.retry
        headers["retry-after"] = str(max(1, math.ceil(min(hint, _LONGEST_RETRY))))
    if etag is not None:
        headers["etag"] = etag
    HTTPException.__init__(answer, code, detail, headers)
    answer.kind, answer.lock = kind, lock
    return answer


def _answer_class(error: type[Exception]) -> type[Problem]:
    if error not in _answers:
        # The error's own class comes first: a user's handler for it wins over every handler for HTTP errors.
        bases: tuple[type, ...] = (error, Problem)
        members = {"__module__": error.__module__, "__str__": Problem.__str__, "__repr__": Problem.__repr__}
        found = types.new_class(error.__name__, bases, exec_body=lambda space: space.update(members))
        _answers[error] = cast("type[Problem]", found)
    return _answers[error]


async def answer(conn: HTTPConnection, error: Exception) -> Response | None:
    """The exception handler: the whole document. Raises again what the table does not know."""
    found = problem(error)
    if found is None:
        raise error
    if isinstance(conn, WebSocket) and "websocket.http.response" not in conn.scope.get("extensions", {}):
        # This server can refuse a WebSocket only without words.
        await conn.close(_TRY_AGAIN_LATER)
        return None
    return JSONResponse(found.document(), found.status_code, found.headers)


def closing(conn: HTTPConnection, error: Exception) -> WebSocketException | None:
    """The end of a WebSocket that was accepted already: there is no answer any more. `None` for all else."""
    if not isinstance(conn, WebSocket) or conn.application_state is WebSocketState.CONNECTING:
        return None
    kind = kind_of(error)
    return WebSocketException(_TRY_AGAIN_LATER, kind.type if kind else None)


def introduce(conn: HTTPConnection) -> None:
    """Let the running request answer with whole documents where nobody installed anything, as in a mounted sub-app.

    Where the user has a handler of their own for HTTP errors, that one stays in charge.
    """
    handlers = conn.scope.get("starlette.exception_handlers")
    if not handlers:
        return
    by_class = cast("MutableMapping[Any, Any]", handlers[0])
    now = next((by_class[base] for base in Problem.__mro__ if base in by_class), None)
    if now is http_exception_handler or getattr(now, "__func__", None) is ExceptionMiddleware.http_exception:
        by_class[Problem] = answer
