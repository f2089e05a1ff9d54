"""What can be seen to be wrong before the first request comes: eight ways to use guards that will go badly.

A finding names the route, the guard, the reason and the cure.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any, Final, NamedTuple, get_args

from fastapi.dependencies.models import Dependant
from fastapi.security.base import SecurityBase
from starlette.responses import StreamingResponse

from grelmicro_fastapi.coordination.guards import Guard, LockHandle, ReadGuard, WriteGuard
from grelmicro_fastapi.web.dependencies import GuardDependency
from grelmicro_fastapi.web.options import GuardOptions
from grelmicro_fastapi.web.routes import GuardedRoute, routes, solved
from grelmicro_fastapi.web.template import Template, source

_GIVES: Final[dict[str, type[Guard]]] = {"read": ReadGuard, "write": WriteGuard, "lock": LockHandle}
_MENTIONS: Final = re.compile(r"\b(ReadGuard|WriteGuard|LockHandle|read_guard|write_guard|lock_guard)\b")
_COMMITS: Final = re.compile(r"\bcommit\b|\.begin\(|\.transaction\(")


class Finding(NamedTuple):
    """One thing to change. `code` never changes its meaning."""

    code: str
    route: str
    guard: str
    reason: str
    cure: str

    def __str__(self) -> str:
        return f"{self.code}: {self.route}: {self.guard}: {self.reason}; {self.cure}"


def lint(app: Any) -> list[Finding]:
    """Look at every route of the app, those of included routers and mounted apps too."""
    found = list(routes(app))
    findings = [finding for route in found for look in _LOOKS for finding in look(route)]
    return [*findings, *_opposite_orders(found)]


def _two_modes(route: GuardedRoute) -> Iterator[Finding]:
    modes: dict[tuple[object, str], str] = {}
    for guard in route.guards:
        for name in guard.options.names:
            mode = guard.options.mode
            if mode != "lock" and modes.setdefault((guard.options.backend, name), mode) != mode:
                yield Finding(
                    "two-modes", route.label, repr(guard), f"it reads and writes {name!r} in one request, which is 500",
                    "take the write guard alone",
                )  # fmt: skip


def _unknown_placeholder(route: GuardedRoute) -> Iterator[Finding]:
    for guard in route.guards:
        if guard.options.key is not None:
            continue
        for placeholder in [one for name in guard.options.names for one in Template(name).placeholders]:
            # A path convertor, as in {order_id:int}, says what the value is.
            converted = getattr(route.route, "param_convertors", {}).get(placeholder)
            if source(route.endpoint, placeholder) is None and getattr(converted, "regex", "[^/]+") == "[^/]+":
                yield Finding(
                    "unknown-placeholder", route.label, repr(guard), f"no parameter is called {placeholder!r}",
                    "declare it in the endpoint, or use key=",
                )  # fmt: skip


def _unlocked_stream(route: GuardedRoute) -> Iterator[Finding]:
    endpoint = route.endpoint
    yields = inspect.isasyncgenfunction(endpoint) or inspect.isgeneratorfunction(endpoint)
    returned = inspect.signature(endpoint).return_annotation
    streams = [getattr(route.route, "response_class", None), returned]
    if yields or any(inspect.isclass(one) and issubclass(one, StreamingResponse) for one in streams):
        for guard in route.guards:
            if guard.options.hold == "handler":
                yield Finding(
                    "unlocked-stream", route.label, repr(guard), "the body is sent after the handler, without the lock",
                    'say hold="response"',
                )  # fmt: skip


def _commit_after_unlock(route: GuardedRoute) -> Iterator[Finding]:
    writes = [one.options for one in route.guards if one.options.mode != "read"]
    taken: list[GuardOptions] = []
    for dependant in solved(route.dependant):
        call = dependant.call
        if (guard := route.guard_of(dependant)) is not None:
            taken.append(guard.options)
        elif writes and call and _is_generator(call) and _COMMITS.search(_source_of(call)):
            in_time = {name for one in writes for name in one.names if _covers(one, dependant, one in taken)}
            for late in writes:
                if not in_time.issuperset(late.names):
                    yield Finding(
                        "commit-after-unlock", route.label, repr(late),
                        f"{_name(call)} commits after the lock is released",
                        'put the guard first, and say Depends(..., scope="function") of the session or hold="response" '
                        "of the guard",
                    )  # fmt: skip
                    break


def _covers(guard: GuardOptions, session: Dependant, taken_before: bool) -> bool:
    """Does the session end before the guard does? Of what ends together, the last that was opened ends first."""
    ends_with_handler = session.scope == "function"
    if guard.hold == "response":
        return ends_with_handler or taken_before
    return ends_with_handler and taken_before


def _guard_before_auth(route: GuardedRoute) -> Iterator[Finding]:
    before: list[GuardDependency[Any]] = []
    for dependant in solved(route.dependant):
        if (taken := route.guard_of(dependant)) is not None:
            before.append(taken)
        elif isinstance(dependant.call, SecurityBase):
            for guard in dict.fromkeys(before):
                yield Finding(
                    "guard-before-auth", route.label, repr(guard), "who may not ask takes the lock, and waits for it",
                    "put the guard after it, or name it in requires=",
                )  # fmt: skip
            return


def _unresolved_annotation(route: GuardedRoute) -> Iterator[Finding]:
    solved_here = {below.name for below in route.dependant.dependencies}
    for parameter in inspect.signature(route.endpoint).parameters.values():
        text = parameter.annotation
        if isinstance(text, str) and _MENTIONS.search(text) and parameter.name not in solved_here:
            yield Finding(
                "unresolved-annotation", route.label, parameter.name,
                f"{text!r} names what FastAPI cannot see, so it takes it for a query parameter",
                "define and import it at the top of the module, and not under TYPE_CHECKING",
            )  # fmt: skip


def _other_type(route: GuardedRoute) -> Iterator[Finding]:
    for dependant in [route.dependant, *solved(route.dependant)]:
        given = {below.name: guard for below in dependant.dependencies if (guard := route.guard_of(below))}
        if not given or dependant.call is None:
            continue
        for parameter in _resolved(dependant.call):
            guard = given.get(parameter.name)
            named = set(_guards_in(parameter.annotation))
            if guard and named and _GIVES[guard.options.mode] not in named:
                said = " or ".join(sorted(kind.__name__ for kind in named))
                yield Finding(
                    "other-type", route.label, repr(guard), f"{parameter.name} is annotated as {said}, which it is not",
                    f"annotate it as {_GIVES[guard.options.mode].__name__}, or use the other guard",
                )  # fmt: skip


_LOOKS: Final[Sequence[Callable[[GuardedRoute], Iterator[Finding]]]] = (
    _two_modes,
    _unknown_placeholder,
    _unlocked_stream,
    _commit_after_unlock,
    _guard_before_auth,
    _unresolved_annotation,
    _other_type,
)


def _opposite_orders(found: list[GuardedRoute]) -> Iterator[Finding]:
    orders: dict[tuple[object, object], GuardedRoute] = {}
    for route in found:
        for first, second in combinations(_taken(route), 2):
            if first == second:
                continue
            orders.setdefault((first, second), route)
            other = orders.get((second, first))
            if other is not None:
                names = f"{second[1]!r} and {first[1]!r}"
                yield Finding(
                    "opposite-orders", route.label, names, f"{other.label} takes them the other way round: a deadlock",
                    "take them in one guard, which sorts its names, or in one order",
                )  # fmt: skip


def _taken(route: GuardedRoute) -> list[tuple[object, str]]:
    """The names of a route in the order in which they are taken, as far as it is the same for every request."""
    taken: list[tuple[object, str]] = []
    for guard in route.guards:
        options = guard.options
        if options.key is None and (len(options.names) == 1 or all(Template(name).fixed for name in options.names)):
            taken += [((options.backend, options.mode == "lock"), name) for name in sorted(options.names)]
    return list(dict.fromkeys(taken))


def _resolved(call: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(call, eval_str=True).parameters.values())
    except Exception:
        return []


def _guards_in(annotation: object) -> Iterator[type[Guard]]:
    if inspect.isclass(annotation) and issubclass(annotation, Guard):
        yield annotation
    for part in get_args(annotation):
        yield from _guards_in(part)


def _is_generator(call: object) -> bool:
    return inspect.isasyncgenfunction(call) or inspect.isgeneratorfunction(call)


def _source_of(call: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(call)
    except (OSError, TypeError):
        return ""


def _name(call: object) -> str:
    return getattr(call, "__name__", repr(call))
