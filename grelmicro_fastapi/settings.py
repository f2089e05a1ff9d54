"""Where the value of an option comes from: keyword, then `GREL_*` environment variables, then the default.

`GREL_{KIND}_{NAME}_{FIELD}` goes before `GREL_{KIND}_{FIELD}`. Both are read only when `GREL_ENV_LOAD` is truthy or
the caller says `env_load=True`. An empty variable counts as unset, everywhere.
"""

import logging
import math
import os
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Annotated, Final, Literal, NamedTuple, TypeVar, cast
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from grelmicro_fastapi.errors import SettingsValidationError

_log = logging.getLogger(__name__)

_GATE: Final = "GREL_ENV_LOAD"
_TRUTHY: Final = frozenset({"1", "true", "yes", "on"})
_REMEMBERED: Final = 4096
# The texts of these say what was expected. Those of other kinds may quote what was given.
_QUOTABLE: Final = frozenset(
    {
        *("bool_parsing", "bool_type", "float_parsing", "float_type", "int_parsing", "int_type", "string_type"),
        *("finite_number", "greater_than", "greater_than_equal", "less_than", "less_than_equal"),
        *("string_pattern_mismatch", "string_too_long", "string_too_short"),
        *("extra_forbidden", "literal_error", "missing", "value_error"),
    }
)

Duration = Annotated[float, Field(ge=0.001, le=3_153_600_000, allow_inf_nan=False)]
"""Seconds: at least a millisecond, at most a hundred years, so that every store counts its milliseconds exactly."""
Jitter = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
"""A share of a pause, from 0 up to but not including 1."""
Worker = Annotated[
    str,
    BeforeValidator(lambda given: str(given) if isinstance(given, UUID) else given),
    StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]*$"),
]
"""Who this process is: 1 to 256 characters, none of them a control character. A `UUID` is taken as text."""
Environment = Literal["production", "staging", "development", "test"]


class Settings(BaseModel):
    """The base of every noun's options: frozen, and every field has a default.

    A validator of a subclass must not put a value into its message: messages are shown as they are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=False)


SettingsT = TypeVar("SettingsT", bound=Settings)


class _Read(NamedTuple):
    """What the environment says of one field, and which variable said it."""

    variable: str
    value: str


class _Ignored(NamedTuple):
    """Variables of a kind that were set while the gate was off, when the environment had `size` variables in all."""

    size: int
    variables: set[str]


_absent_at: int = -1
_ignored: dict[tuple[str, type[Settings]], _Ignored] = {}
_warned: set[str] = set()


def resolve(
    kind: str, name: str, model: type[SettingsT], given: Mapping[str, object], *, env_load: bool | None = None
) -> SettingsT:
    """The options of one noun: `given` (only what the caller wrote), then the environment, then the defaults.

    The environment is read once per kind and name: without `given` the same frozen object comes back. Raises
    `SettingsValidationError`, which names the keyword or the variable. A variable that is set but not read because
    the gate is off is warned of once; `env_load=False` says that this is meant.
    """
    if _gate_open() if env_load is None else env_load:
        if not given:
            return cast("SettingsT", _environment_only(kind, name, model))
        return _build(model, _read(kind, name, model), given)
    if env_load is None:
        _warn_of_ignored(kind, name, model)
    if not given:
        return cast("SettingsT", _defaults(model))
    return _build(model, {}, given)


def environment() -> Environment | None:
    """What `GREL_ENVIRONMENT` says, or `None` if it is unset. Raises `SettingsValidationError` on any other word."""
    value = read_env("GREL_ENVIRONMENT")
    match value and value.strip().lower():
        case None:
            return None
        case "production" | "staging" | "development" | "test" as known:
            return known
        case _:
            message = "GREL_ENVIRONMENT must be production, staging, development or test"
            raise SettingsValidationError(message)


def seconds(keyword: str, given: object, *, least: float = 0.0) -> float:
    """Return a length in seconds that no model looks at. Raises `SettingsValidationError`, which names the keyword."""
    if isinstance(given, int | float) and not isinstance(given, bool) and least <= given < math.inf:
        return given
    raise SettingsValidationError(f"{keyword} is a number of seconds from {least:g} up, not {given!r}")


def text(keyword: str, given: object, *, needed: bool = True) -> None:
    """Raise `SettingsValidationError` for what is no text. The value, perhaps a password, is not in its message."""
    if not isinstance(given, str) and (needed or given is not None):
        raise SettingsValidationError(f"{keyword} is text, and not of type {type(given).__name__}")


def flag(keyword: str, given: object) -> None:
    """Raise `SettingsValidationError` for what is neither True nor False: the text "no" counts as true."""
    if not isinstance(given, bool):
        raise SettingsValidationError(f"{keyword} is True or False, not {given!r}")


def whole(keyword: str, given: object, *, least: int = 0, most: int | None = None) -> None:
    """Raise `SettingsValidationError` for what is no whole number in that range."""
    if not isinstance(given, int) or isinstance(given, bool) or given < least or (most is not None and given > most):
        span = f"from {least} up" if most is None else f"from {least} to {most}"
        raise SettingsValidationError(f"{keyword} is a whole number {span}, not {given!r}")


def read_env(name: str) -> str | None:
    """A variable that no gate guards, or `None` if it is unset or empty."""
    return os.environ.get(name) or None


def forget() -> None:
    """Read the environment anew from now on, and warn anew."""
    global _absent_at
    _absent_at = -1
    _ignored.clear()
    _warned.clear()
    _environment_only.cache_clear()
    _read.cache_clear()


def _gate_open() -> bool:
    # A look at an absent variable costs ten times a look at how many there are, and a lock is made per order.
    global _absent_at
    size = len(os.environ)
    if size == _absent_at:
        return False
    value = os.environ.get(_GATE)
    _absent_at = size if value is None else -1
    return value is not None and value.strip().lower() in _TRUTHY


@lru_cache(maxsize=_REMEMBERED)
def _environment_only(kind: str, name: str, model: type[Settings]) -> Settings:
    return _build(model, _read(kind, name, model), {})


@cache
def _defaults(model: type[Settings]) -> Settings:
    return model()


@lru_cache(maxsize=_REMEMBERED)
def _read(kind: str, name: str, model: type[Settings]) -> Mapping[str, _Read]:
    found: dict[str, _Read] = {}
    for field in model.model_fields:
        for prefix in _prefixes(kind, name):
            variable = prefix + field.upper()
            if value := read_env(variable):
                found[field] = _Read(variable, value)
                break
    return found


def _prefixes(kind: str, name: str) -> tuple[str, ...]:
    """Where the variables of a name are looked for, the nearest first."""
    if "{" in name.replace("{{", ""):
        return (f"GREL_{kind}_",)
    return (f"GREL_{kind}_{re.sub('[^A-Za-z0-9]', '_', name).upper()}_", f"GREL_{kind}_")


def _build(model: type[SettingsT], read: Mapping[str, _Read], given: Mapping[str, object]) -> SettingsT:
    values = {field: found.value for field, found in read.items()} | dict(given)
    try:
        return model.model_validate(values)
    except ValidationError as invalid:
        error = _explain(model, invalid, read, given)
    # Raised out here, so that no exception that holds the value travels along with it.
    raise error


def _explain(
    model: type[Settings], invalid: ValidationError, read: Mapping[str, _Read], given: Mapping[str, object]
) -> SettingsValidationError:
    sources = {field: found.variable for field, found in read.items()} | {field: f"{field}=" for field in given}
    complaints: list[str] = []
    for detail in invalid.errors(include_url=False, include_context=False, include_input=False):
        # A rule on several fields has no place of its own: everything that was set is named.
        fields = [str(part) for part in detail["loc"][:1]] or list(sources) or [model.__name__]
        named = ", ".join(sources.get(field, field) for field in fields)
        complaints.append(f"{named}: {_complaint(model, detail['type'], detail['msg'])}")
    return SettingsValidationError("; ".join(complaints))


def _complaint(model: type[Settings], kind: str, text: str) -> str:
    if kind == "extra_forbidden":
        return f"there is no such option, choose from {', '.join(f'{field}=' for field in model.model_fields)}"
    if kind not in _QUOTABLE:
        return "not a valid value"
    # The library's words: "Input should be a valid number, unable to parse string as a number".
    return text.removeprefix("Value error, ").replace("Input should", "must", 1).partition(", unable to ")[0]


def _warn_of_ignored(kind: str, name: str, model: type[Settings]) -> None:
    size = len(os.environ)
    ignored = _ignored.get((kind, model))
    if ignored is None or ignored.size != size:
        fields = tuple(f"_{field.upper()}" for field in model.model_fields)
        variables = {
            variable
            for variable, value in os.environ.items()
            if value and variable.startswith(f"GREL_{kind}_") and variable.endswith(fields)
        }
        ignored = _ignored[kind, model] = _Ignored(size, variables - _warned)
    if not ignored.variables:
        return
    readable = {prefix + field.upper() for prefix in _prefixes(kind, name) for field in model.model_fields}
    for variable in sorted(ignored.variables & readable):
        ignored.variables.discard(variable)
        _warned.add(variable)
        _log.warning("%s is set but not read: set %s=1, or pass env_load=False if this is meant", variable, _GATE)
