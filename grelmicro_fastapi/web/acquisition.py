"""From a request to the guards it asks for, and back: what all guard dependencies do, whatever their options."""

import logging
from functools import partial
from types import TracebackType
from typing import Any, cast

from fastapi import Response
from starlette.requests import HTTPConnection

from grelmicro_fastapi.coordination.backend import Backend, Source
from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.coordination.guards import Guard, LockHandle, ReadGuard, WriteGuard
from grelmicro_fastapi.coordination.names import LOCK, READWRITELOCK, check_name
from grelmicro_fastapi.coordination.options import LockOptions, wish
from grelmicro_fastapi.coordination.readwritelock import ReadView, WriteView
from grelmicro_fastapi.coordination.state import Mode as LawMode
from grelmicro_fastapi.coordination.view import View
from grelmicro_fastapi.coordination.wish import Wish
from grelmicro_fastapi.errors import (
    CoordinationError,
    LockNotOwnedError,
    QueueFullError,
    StaleGenerationError,
    WouldBlockError,
)
from grelmicro_fastapi.web import conditional
from grelmicro_fastapi.web.disconnect import while_connected
from grelmicro_fastapi.web.options import GuardOptions
from grelmicro_fastapi.web.problems import Problem, closing, introduce, misuse, problem
from grelmicro_fastapi.web.registry import Hold, Key, end_all, registry_of
from grelmicro_fastapi.web.runtime import source_of
from grelmicro_fastapi.web.template import Template, UnknownPlaceholderError

_log = logging.getLogger("grelmicro_fastapi.web")


class Acquisition:
    """How the names of one guard are taken. Made once per guard, so that a request finds everything prepared."""

    def __init__(self, guard: GuardOptions) -> None:
        self.guard = guard
        self.label = ", ".join(guard.names)
        self.plain = guard.mode == "lock"
        self._templates = [Template(name) for name in guard.names]
        self._views: dict[tuple[Backend, int], View[Any]] = {}
        self._wishes = [self._wish(template) for template in self._templates]

    async def use(self, conn: HTTPConnection, key: Any, response: Response | None, *, streams: bool) -> "Use":
        """Take every name for this request, or raise the answer to it."""
        guard = self.guard
        use = Use(conn, self)
        try:
            if streams and guard.hold == "handler":
                raise misuse(
                    "the handler yields its answer, and hold='handler' ends before that begins: say hold='response'",
                    lock=self.label,
                )
            names = self._names(conn, key)
            backend = self._source(conn).backend
            use.holds = await self._take(conn, backend, names)
        except (WouldBlockError, QueueFullError) as error:
            if not guard.required:
                return use
            raise self.answer(conn, error) from error
        except CoordinationError as error:
            raise self.answer(conn, error) from error
        except Problem:
            introduce(conn)
            raise
        by_name = {hold.key.name: hold.guard for hold in use.holds}
        use.value = by_name[names[0]] if len(names) == 1 else tuple(by_name[name] for name in names)
        if guard.etag:
            await self._tag(use, [by_name[name] for name in names], response)
        return use

    async def _tag(self, use: "Use", guards: list[Guard], response: Response | None) -> None:
        """Send the entity tag of what is held, or none of it to a client that has it."""
        conn = use.conn
        try:
            tag = conditional.etag(guards)
        except LockNotOwnedError as lost:
            await use.end(lost)
            raise
        if tag is None:
            return
        if self.guard.mode == "read" and conditional.unchanged(conn, tag):
            await use.end(None)
            introduce(conn)
            raise conditional.NotModified(tag)
        conditional.offer(conn, response, tag)

    async def _take(self, conn: HTTPConnection, backend: Backend, names: list[str]) -> list[Hold]:
        registry, clock, holds = registry_of(conn), backend.crew().clock, list[Hold]()
        until = None if self.guard.wait is None else clock.now() + self.guard.wait
        try:
            # In sorted order, so that two requests that take the same names never wait for each other in a ring.
            for name in sorted({*names}) if len(names) > 1 else names:
                number = names.index(name)
                left = None if until is None else max(0.0, until - clock.now())
                acquire = partial(self._acquire, conn, self._view(backend, name, number), left, clock)
                place, expects = Key(backend, name, self.plain), self._expects(conn)
                holds.append(await registry.take(place, self.guard.mode, acquire, expects=expects))
        except BaseException as error:
            await end_all(holds, error)
            raise
        return holds

    async def _acquire(self, conn: HTTPConnection, view: View[Any], left: float | None, clock: Clock) -> Guard:
        match = self.guard.if_match
        tags = conditional.condition(conn, required=match == "required") if match else None
        if tags is not None:
            acquire = partial(conditional.acquire_matching, cast("WriteView", view), tags, left, clock)
        else:
            acquire = partial(view.acquire, timeout=left)
        return cast("Guard", await (acquire() if left == 0 else while_connected(conn, acquire)))

    def _view(self, backend: Backend, name: str, number: int) -> View[Any]:
        view = self._views.get((backend, number))
        if view is not None:
            return view
        prefix = LOCK if self.plain else READWRITELOCK
        own = self._wishes[number].named(name, prefix + name)
        if self.plain:
            view = View(own, backend, LockHandle)
        elif own.mode is LawMode.READ:
            view = ReadView(own, backend, ReadGuard)
        else:
            view = WriteView(own, backend, WriteGuard)
        if self._templates[number].fixed is not None and self.guard.key is None:
            # One app and one backend are the rule. Whoever opens many of them in turn leaves nothing behind.
            if len(self._views) > 2 * len(self._templates):
                self._views.clear()
            self._views[backend, number] = view
        return view

    def _wish(self, template: Template) -> Wish:
        """Resolve the options once. A name with placeholders reads the settings of its kind alone."""
        guard = self.guard
        options: LockOptions = {"keep_alive": guard.keep_alive, "on_lost": guard.on_lost}
        if guard.lease_duration is not None:
            options["lease_duration"] = guard.lease_duration
        if guard.max_hold is not None:
            options["max_hold"] = guard.max_hold
        kind, prefix = ("LOCK", LOCK) if self.plain else ("READWRITELOCK", READWRITELOCK)
        mode = LawMode.READ if guard.mode == "read" else LawMode.WRITE
        return wish(kind, prefix, template.fixed or template.text, mode, options, None)

    def _expects(self, conn: HTTPConnection) -> bool:
        match = self.guard.if_match
        return match is not None and (match == "required" or "if-match" in conn.headers)

    def _names(self, conn: HTTPConnection, key: Any) -> list[str]:
        if key is not None or self.guard.key is not None:
            try:
                if isinstance(key, str):
                    return [check_name(key)]
                why = f"a lock's name is a str, not {type(key).__name__}"
            except ValueError as error:
                why = str(error)
            raise misuse(f"key= returned what is no name: {why}", lock=self.label)
        try:
            return [template.resolve(conn) for template in self._templates]
        except UnknownPlaceholderError as unknown:
            raise misuse(
                f"the endpoint has no parameter {unknown} with a value to name the lock by: declare it, or use key=",
                lock=self.label,
            ) from None

    def _source(self, conn: HTTPConnection) -> Source:
        if self.guard.backend is not None:
            return self.guard.backend
        return source_of(conn)

    def answer(self, conn: HTTPConnection, error: Exception) -> Problem:
        """The answer to this error, from this guard."""
        introduce(conn)
        tag = None
        if isinstance(error, StaleGenerationError) and error.current is not None:
            tag = conditional.tag_of(error.current)
        found = problem(error, lock=self.label, status=self.guard.status, etag=tag)
        return found or misuse(str(error), lock=self.label)


class Use:
    """One use of a guard by a request: what was taken for it, until it ends."""

    __slots__ = ("acquisition", "conn", "holds", "value")

    def __init__(self, conn: HTTPConnection, acquisition: Acquisition) -> None:
        self.conn = conn
        self.acquisition = acquisition
        self.holds: list[Hold] = []
        self.value: Any = None

    async def exit(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End with the handler, as a callback of its exit stack."""
        await self.end(error)

    async def confirm(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The handler has returned but the lock is kept: if it is lost, a good answer must not leave."""
        if error is None:
            for hold in self.holds:
                if hold.guard.lost:
                    raise self._answer(LockNotOwnedError(f"the lease of {hold.key.name!r} has ended"))

    async def end(self, error: BaseException | None, *, answered: bool = False) -> None:
        """Release what no other use of this request needs, and say what must be said instead of the answer.

        The handler's own error is never masked; an error of this library becomes its answer. A lease that was lost
        turns a good answer into 503, unless it is `answered` already.
        """
        # With an error of the handler, a loss comes back only where it is what cancelled the handler.
        lost = await end_all(self.holds, error)
        if lost is not None and answered:
            _log.error("%s, and the answer was sent already", lost)
        elif lost is not None:
            raise self._answer(lost) from error or lost
        elif isinstance(error, CoordinationError) and not isinstance(error, Problem):
            raise self._answer(error) from error

    def _answer(self, error: CoordinationError) -> Exception:
        return closing(self.conn, error) or self.acquisition.answer(self.conn, error)
