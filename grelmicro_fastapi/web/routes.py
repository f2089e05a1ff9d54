"""Where guards are used: every route of an app, through included routers, mounts and dependencies of dependencies."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeGuard

from fastapi import routing
from fastapi.dependencies.models import Dependant
from starlette.routing import BaseRoute, Mount

from grelmicro_fastapi.web.dependencies import GuardDependency
from grelmicro_fastapi.web.leader import LeaderDependency
from grelmicro_fastapi.web.methods import SAFE, MethodDependency


class GuardedRoute(NamedTuple):
    """One route. `path` is as in OpenAPI, without what it is mounted on; `methods` is empty for WebSockets."""

    mounted: str
    path: str
    methods: tuple[str, ...]
    endpoint: Callable[..., Any]
    dependant: Dependant
    route: Any

    @property
    def label(self) -> str:
        """How a person would call it: `PUT /catalog`."""
        return f"{'/'.join(self.methods) or 'WEBSOCKET'} {self.mounted}{self.path}"

    @property
    def guards(self) -> list[GuardDependency[Any]]:
        """The guards it uses, in the order in which they are taken, each once."""
        found = (self.guard_of(dependant) for dependant in solved(self.dependant))
        return list(dict.fromkeys(guard for guard in found if guard is not None))

    @property
    def leaders(self) -> list[LeaderDependency[Any]]:
        """The leader guards it uses, each once."""
        calls = [dependant.call for dependant in solved(self.dependant)]
        return list(dict.fromkeys(call for call in calls if _is_leader(call)))

    def guard_of(self, dependant: Dependant) -> GuardDependency[Any] | None:
        """The guard that this dependency is for this route, if it is one."""
        call = dependant.call
        if isinstance(call, MethodDependency):
            return call.chosen(
                next((method for method in self.methods if method not in SAFE), (*self.methods, None)[0])
            )
        return call if _is_guard(call) else None


def routes(app: Any, *, mounted: bool = True) -> Iterator[GuardedRoute]:
    """Every FastAPI route of the app, those of mounted apps too if `mounted`."""
    return _walk(app.routes, "", mounted)


def solved(dependant: Dependant) -> Iterator[Dependant]:
    """All that FastAPI solves before it calls the handler, in its order."""
    for below in dependant.dependencies:
        yield from solved(below)
        yield below


def _is_guard(call: object) -> TypeGuard[GuardDependency[Any]]:
    return isinstance(call, GuardDependency)


def _is_leader(call: object) -> TypeGuard[LeaderDependency[Any]]:
    return isinstance(call, LeaderDependency)


def _walk(found: Sequence[BaseRoute], prefix: str, mounted: bool) -> Iterator[GuardedRoute]:
    # Since 0.137 the routes of FastAPI are a tree; before, they are a list.
    flatten: Callable[..., Any] = getattr(routing, "iter_route_contexts", iter)
    for route in flatten(found):
        bare = getattr(route, "original_route", route)
        dependant = getattr(route, "dependant", None)
        if isinstance(bare, Mount):
            if mounted:
                yield from _walk(bare.routes, prefix + bare.path, mounted)
        elif isinstance(dependant, Dependant) and dependant.call is not None:
            methods = tuple(sorted(getattr(route, "methods", None) or ()))
            path = str(getattr(route, "path_format", None) or getattr(route, "path", ""))
            yield GuardedRoute(prefix, path, methods, dependant.call, dependant, route)
