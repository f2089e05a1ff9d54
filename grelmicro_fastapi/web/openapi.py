"""What the documentation of an API says of guards: their answers, their headers, and `x-guards`.

Nothing that the user wrote is overwritten.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from fastapi import FastAPI

from grelmicro_fastapi.web.leader import LeaderDependency
from grelmicro_fastapi.web.options import GuardOptions
from grelmicro_fastapi.web.problems import (
    CONTENDED,
    DRAINING,
    FOLLOWER,
    LOST,
    MEDIA_TYPE,
    STALE,
    TYPE,
    UNAVAILABLE,
    UNCONDITIONAL,
    Kind,
)
from grelmicro_fastapi.web.routes import routes

Document = dict[str, Any]

_SCHEMA: Final = "GuardProblem"
_RETRY_AFTER: Final = {"description": "Seconds until the same request may succeed.", "schema": {"type": "integer"}}
_ETAG: Final = {"description": "The generation of what is protected.", "schema": {"type": "string"}}


def document(app: FastAPI) -> None:
    """Let `app.openapi()` speak of guards. The schema that FastAPI makes, and caches, is completed on every call."""
    make: Callable[[], Document] = app.openapi

    def openapi() -> Document:
        schema = make()
        _complete(schema, app)
        return schema

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's own documentation extends it


def _complete(schema: Document, app: FastAPI) -> None:
    used = False
    for route in routes(app, mounted=False):
        item: Document = schema.get("paths", {}).get(route.path, {})
        for method in route.methods:
            operation: Document | None = item.get(method.lower())
            if operation is None:
                continue
            guards = [guard.options for guard in route._replace(methods=(method,)).guards]
            leaders = route.leaders
            if guards or leaders:
                used = True
                _describe(operation, guards, leaders)
                for guard in guards:
                    _describe_conditions(operation, guard, method)
    if used:
        schemas = schema.setdefault("components", {}).setdefault("schemas", {})
        schemas.setdefault(_SCHEMA, _problem())


def _describe(operation: Document, guards: list[GuardOptions], leaders: list[LeaderDependency[Any]]) -> None:
    responses: Document = operation.setdefault("responses", {})
    for status, kinds in _answers(guards, leaders).items():
        responses.setdefault(str(status), _response(kinds))
    entries: list[Document] = operation.setdefault("x-guards", [])
    said: list[Document] = [
        {"name": name, "mode": guard.mode, "hold": guard.hold, "wait": guard.wait}
        for guard in guards
        for name in guard.names
    ]
    said += [{"name": leader.name, "mode": "leader"} for leader in leaders]
    entries += [entry for entry in said if entry not in entries]


def _describe_conditions(operation: Document, guard: GuardOptions, method: str) -> None:
    responses: Document = operation["responses"]
    if guard.etag:
        for code, response in responses.items():
            if code.startswith("2"):
                response.setdefault("headers", {}).setdefault("ETag", _ETAG)
        if guard.mode == "read" and method in ("GET", "HEAD"):
            responses.setdefault("304", {"description": "Not Modified", "headers": {"ETag": _ETAG}})
            _header(operation, "If-None-Match", "Answer only if this is not the generation any more.", False)
    if guard.if_match:
        required = guard.if_match == "required"
        _header(operation, "If-Match", "Change it only if this is the generation.", required)


def _answers(guards: list[GuardOptions], leaders: list[LeaderDependency[Any]]) -> dict[int, list[Kind]]:
    found: list[tuple[int, Kind]] = []
    for guard in guards:
        if guard.required:
            found.append((guard.status, CONTENDED))
        if guard.if_match:
            found.append((STALE.status, STALE))
        if guard.if_match == "required":
            found.append((UNCONDITIONAL.status, UNCONDITIONAL))
        found += [(kind.status, kind) for kind in (UNAVAILABLE, DRAINING, LOST)]
    found += [(FOLLOWER.status, FOLLOWER) for leader in leaders if leader.required]
    answers: dict[int, list[Kind]] = {}
    for status, kind in dict.fromkeys(found):
        answers.setdefault(status, []).append(kind)
    return answers


def _response(kinds: list[Kind]) -> Document:
    words = ", ".join(f"`{kind.type}`" for kind in kinds)
    response: Document = {
        "description": f"{kinds[0].title} ({words})",
        "content": {MEDIA_TYPE: {"schema": {"$ref": f"#/components/schemas/{_SCHEMA}"}}},
    }
    headers = dict(_headers(kinds))
    if headers:
        response["headers"] = headers
    return response


def _headers(kinds: list[Kind]) -> Iterator[tuple[str, Document]]:
    if any(kind.retry is not None for kind in kinds):
        yield "Retry-After", _RETRY_AFTER
    if STALE in kinds:
        yield "ETag", _ETAG


def _header(operation: Document, name: str, description: str, required: bool) -> None:
    parameters: list[Document] = operation.setdefault("parameters", [])
    if not any(known.get("in") == "header" and known.get("name", "").lower() == name.lower() for known in parameters):
        schema = {"type": "string"}
        parameters.append(
            {"name": name, "in": "header", "required": required, "description": description, "schema": schema}
        )


def _problem() -> Document:
    """Problem details, RFC 9457."""
    return {
        "title": _SCHEMA,
        "type": "object",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": {"type": "string", "format": "uri", "example": TYPE + CONTENDED.type},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "lock": {"type": "string", "description": "The name as the route writes it."},
            "retry_after": {"type": "integer", "description": "Seconds, as in Retry-After."},
        },
    }
