"""What the lint says, and what it finds in annotations: names that FastAPI cannot see, and guards of another kind."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, get_args

from fastapi.dependencies.models import Dependant

from grelmicro_fastapi.coordination.guards import Guard, LockHandle, ReadGuard, WriteGuard
from grelmicro_fastapi.web.routes import GuardedRoute, solved

_GIVES: Final[dict[str, type[Guard]]] = {"read": ReadGuard, "write": WriteGuard, "lock": LockHandle}
_MENTIONS: Final = re.compile(r"\b(ReadGuard|WriteGuard|LockHandle|read_guard|write_guard|lock_guard)\b")


class Finding(NamedTuple):
    """One thing to change. `code` never changes its meaning."""

    code: str
    route: str
    guard: str
    reason: str
    cure: str

    def __str__(self) -> str:
        return f"{self.code}: {self.route}: {self.guard}: {self.reason}; {self.cure}"


def unresolved_annotation(route: GuardedRoute) -> Iterator[Finding]:
    """Text that FastAPI could not resolve: it then takes a guard for a query parameter, and every request fails."""
    for dependant in [route.dependant, *solved(route.dependant)]:
        solved_here = {below.name for below in dependant.dependencies}
        for parameter in _parameters(dependant):
            text = parameter.annotation
            if not isinstance(text, str) or parameter.name in solved_here:
                continue
            # Without a default it may be an alias of anything, a guard too: FastAPI has no way to tell either.
            alone = parameter.default is inspect.Parameter.empty
            if _MENTIONS.search(text) or (alone and not _known(text, dependant.call)):
                yield Finding(
                    "unresolved-annotation", route.label, parameter.name,
                    f"{text!r} names what FastAPI cannot see, so it takes it for a query parameter",
                    "define and import it at the top of the module, and not under TYPE_CHECKING",
                )  # fmt: skip


def other_type(route: GuardedRoute) -> Iterator[Finding]:
    """An annotation that names another guard than the dependency gives. Type checkers cannot see it."""
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


def _parameters(dependant: Dependant) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(dependant.call).parameters.values()) if dependant.call else []
    except (NameError, TypeError, ValueError):
        return []


def _known(text: str, call: object) -> bool:
    """Does FastAPI find what the text names? It looks where the function's module does, and nowhere else."""
    scope = getattr(inspect.unwrap(call), "__globals__", {}) if callable(call) else {}
    try:
        eval(text, dict(scope))  # what FastAPI itself does with it
    except NameError:
        return False
    except Exception:
        return True
    return True


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
