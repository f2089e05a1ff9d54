"""What can be seen to be wrong before the first request comes: nine ways to use guards that will go badly.

A finding names the route, the guard, the reason and the cure.
"""

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import combinations
from typing import Any, Final

from fastapi.dependencies.models import Dependant
from fastapi.security.base import SecurityBase
from starlette.responses import StreamingResponse

from grelmicro_fastapi.web.dependencies import GuardDependency
from grelmicro_fastapi.web.findings import Finding, other_type, unresolved_annotation
from grelmicro_fastapi.web.leader import stands_in
from grelmicro_fastapi.web.options import GuardOptions
from grelmicro_fastapi.web.routes import GuardedRoute, routes, solved
from grelmicro_fastapi.web.template import Template, source

_COMMITS: Final = re.compile(r"\bcommit\b|\.begin\(|\.transaction\(")


def lint(app: Any, elections: Collection[str] | None = None) -> list[Finding]:
    """Look at every route of the app, those of included routers and mounted apps too.

    `elections` are the names of those that the app stands in; None if that is not known.
    """
    found = list(routes(app))
    findings = [finding for route in found for look in _LOOKS for finding in look(route)]
    if elections is not None:
        findings += [finding for route in found for finding in _unknown_election(route, elections)]
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
    # Whether any other function looks at who asks cannot be known, so none is guessed at.
    before: list[GuardDependency[Any]] = []
    for dependant in solved(route.dependant):
        if (taken := route.guard_of(dependant)) is not None:
            before.append(taken)
        elif isinstance(dependant.call, SecurityBase) or dependant.security_scopes_param_name is not None:
            for guard in dict.fromkeys(before):
                yield Finding(
                    "guard-before-auth", route.label, repr(guard), "who may not ask takes the lock, and waits for it",
                    "put the guard after it, or name it in requires=",
                )  # fmt: skip
            return


def _unknown_election(route: GuardedRoute, elections: Collection[str]) -> Iterator[Finding]:
    for guard in route.leaders:
        if isinstance(guard.election, str) and guard.election not in elections:
            yield Finding(
                "unknown-election", route.label, repr(guard), f"{stands_in(elections)}, so every request is 500",
                "add the election, or its Tasks, to Grelmicro(uses=[...])",
            )  # fmt: skip


_LOOKS: Final[Sequence[Callable[[GuardedRoute], Iterator[Finding]]]] = (
    _two_modes,
    _unknown_placeholder,
    _unlocked_stream,
    _commit_after_unlock,
    _guard_before_auth,
    unresolved_annotation,
    other_type,
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


def _is_generator(call: object) -> bool:
    return inspect.isasyncgenfunction(call) or inspect.isgeneratorfunction(call)


def _source_of(call: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(call)
    except (OSError, TypeError):
        return ""


def _name(call: object) -> str:
    return getattr(call, "__name__", repr(call))
