"""Names with placeholders: `order:{order_id}` becomes `order:7` from the value that the endpoint itself gets.

Never from the text of the URL: `/orders/7` and `/orders/007` are one order, and must be one lock.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from string import Formatter
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from fastapi import params
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from starlette.requests import HTTPConnection

from grelmicro_fastapi.coordination.names import check_name

Place = Literal["path", "query", "header", "cookie"]


class UnknownPlaceholderError(LookupError):
    """A name has a placeholder that no parameter of the route stands for."""


class Template:
    """A name as it was written. `{x}` is a placeholder, `{{` and `}}` are braces. Raises `ValueError` if malformed."""

    __slots__ = ("_parts", "fixed", "placeholders", "text")

    def __init__(self, text: str) -> None:
        check_name(text)
        self.text = text
        self._parts: list[tuple[str, str | None]] = []
        for literal, placeholder, form, conversion in Formatter().parse(text):
            if placeholder is not None and (form or conversion or not placeholder.isidentifier()):
                raise ValueError(f"{text!r}: a placeholder is a parameter's name alone, as in {{order_id}}")
            self._parts.append((literal, placeholder))
        self.placeholders = tuple(placeholder for _, placeholder in self._parts if placeholder)
        self.fixed = None if self.placeholders else "".join(literal for literal, _ in self._parts)
        """The name, if it is the same for every request."""

    def resolve(self, conn: HTTPConnection) -> str:
        """The name for this request.

        Raises FastAPI's own validation error (422) where the endpoint would have refused the value, and
        `UnknownPlaceholderError` if the route has no such parameter.
        """
        if self.fixed is not None:
            return self.fixed
        values: dict[str, str] = {}
        errors: list[Mapping[str, Any]] = []
        for placeholder in self.placeholders:
            try:
                values[placeholder] = _text(_value(conn, placeholder))
            except _InvalidError as invalid:
                errors.extend(invalid.errors)
        if errors:
            raise _refusal(conn, errors)
        name = "".join(literal + (values[placeholder] if placeholder else "") for literal, placeholder in self._parts)
        try:
            return check_name(name)
        except ValueError as error:
            where = source(conn.scope.get("endpoint"), self.placeholders[0])
            place = (where.place or "path", where.alias) if where else ("path", self.placeholders[0])
            raise _refusal(
                conn, [{"type": "value_error", "loc": place, "msg": f"Value error, {error}", "input": None}]
            ) from None


class Source(NamedTuple):
    """The parameter behind a placeholder. `place` is `None` where FastAPI decides by the path: path, else query."""

    place: Place | None
    alias: str
    adapter: TypeAdapter[Any]
    default: object


class _InvalidError(Exception):
    def __init__(self, errors: list[Mapping[str, Any]]) -> None:
        super().__init__("a value of a placeholder is not valid")
        self.errors = errors


def source(endpoint: object, placeholder: str) -> Source | None:
    """Find the parameter: the endpoint's own first, then those of the dependencies in its signature."""
    try:
        return _source(endpoint, placeholder)
    except TypeError:  # an endpoint that cannot be hashed is looked at each time
        return _source.__wrapped__(endpoint, placeholder)


@lru_cache(maxsize=2048)
def _source(endpoint: object, placeholder: str) -> Source | None:
    for parameter, annotation in _parameters(endpoint, set()):
        if parameter.name == placeholder:
            return _read(parameter, annotation)
    return None


def _parameters(call: object, seen: set[int]) -> Iterator[tuple[inspect.Parameter, Any]]:
    if not callable(call) or id(call) in seen:
        return
    seen.add(id(call))
    nested: list[object] = []
    for parameter in _signature(call):
        annotation = _annotation(call, parameter)
        depends = _last(annotation, parameter.default, params.Depends)
        if depends is None:
            yield parameter, annotation
        else:
            nested.append(depends.dependency or _bare(annotation))
    for dependency in nested:
        yield from _parameters(dependency, seen)


def _signature(call: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):  # something built in: it has no parameters to show
        return []


def _annotation(call: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    annotation = parameter.annotation
    if not isinstance(annotation, str):
        return annotation
    # One by one, for others of this signature may name what exists only while types are checked.
    where = getattr(inspect.unwrap(call), "__globals__", {})
    try:
        return eval(annotation, where)
    except Exception:
        return Any


def _read(parameter: inspect.Parameter, annotation: Any) -> Source | None:
    info = _last(annotation, parameter.default, params.Param)
    if info is None and _last(annotation, parameter.default, params.Body) is not None:
        return None
    alias = (info and (info.validation_alias or info.alias)) or parameter.name
    if not isinstance(alias, str):
        return None
    if isinstance(info, params.Header) and alias == parameter.name and info.convert_underscores:
        alias = alias.replace("_", "-")
    kind: Any = Any if annotation is inspect.Parameter.empty else annotation
    default = parameter.default
    if default is info and info is not None:
        kind = Annotated[kind, info]
        default = inspect.Parameter.empty if info.is_required() else info.default
    try:
        return Source(info.in_.value if info else None, alias, TypeAdapter(kind), default)
    except PydanticUserError:  # a `Request` or its kind: no value of the client's
        return None


def _last(annotation: Any, default: object, kind: type[Any]) -> Any:
    """What FastAPI goes by: the default if it is of this kind, else the last such mark of an `Annotated`."""
    if isinstance(default, kind):
        return default
    marks = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    return next((mark for mark in reversed(marks) if isinstance(mark, kind)), None)


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _value(conn: HTTPConnection, placeholder: str) -> object:
    where = source(conn.scope.get("endpoint"), placeholder)
    if where is None:
        return _converted(conn, placeholder)
    place = where.place or ("path" if where.alias in conn.path_params else "query")
    values: Mapping[str, Any] = {
        "path": conn.path_params,
        "query": conn.query_params,
        "header": conn.headers,
        "cookie": conn.cookies,
    }[place]
    raw = values.get(where.alias)
    if raw is None:
        if where.default is inspect.Parameter.empty or where.default is None:
            # A lock with no name is no lock: even where the parameter is optional, the placeholder is not.
            missing = {"type": "missing", "loc": (place, where.alias), "msg": "Field required", "input": None}
            raise _InvalidError([missing])
        return where.default
    try:
        return where.adapter.validate_python(raw)
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False)
        raise _InvalidError([{**error, "loc": (place, where.alias, *error["loc"])} for error in errors]) from None


def _converted(conn: HTTPConnection, placeholder: str) -> object:
    """A parameter that only the path declares. Text would be the wrong identity where FastAPI could have parsed it."""
    value = conn.path_params.get(placeholder)
    if value is None or (isinstance(value, str) and "fastapi_inner_astack" in conn.scope):
        raise UnknownPlaceholderError(placeholder)
    return value


def _text(value: object) -> str:
    return str(value.value if isinstance(value, Enum) else value)


def _refusal(conn: HTTPConnection, errors: list[Mapping[str, Any]]) -> Exception:
    if conn.scope["type"] == "websocket":
        return WebSocketRequestValidationError(errors)
    return RequestValidationError(errors)
