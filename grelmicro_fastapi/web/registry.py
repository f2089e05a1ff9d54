"""What one request holds: however often a name is asked for on the way to a handler, it is acquired once.

It is released once too, when the last of those uses ends. FastAPI's own cache cannot do this: it tells apart uses of
different scopes, and those with `use_cache=False` or under `Security`.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from starlette.requests import HTTPConnection

from grelmicro_fastapi.coordination.backend import Backend
from grelmicro_fastapi.coordination.guards import Guard
from grelmicro_fastapi.errors import BackendError, LockNotOwnedError, LockReentrantError, LockUpgradeError
from grelmicro_fastapi.web.options import Mode

_SCOPE: Final = "grelmicro.registry"
_log = logging.getLogger("grelmicro_fastapi.web")


class Key(NamedTuple):
    """What makes two uses of a request the same acquisition. A `Lock` and a `ReadWriteLock` of one name are two."""

    backend: Backend
    name: str
    plain: bool


class Hold:
    """One acquisition, shared by the uses of it that have not ended."""

    __slots__ = ("error", "expects", "guard", "key", "mode", "registry", "uses")

    def __init__(self, registry: "Registry", key: Key, mode: Mode, guard: Guard) -> None:
        self.registry = registry
        self.key = key
        self.mode: Mode = mode
        self.guard = guard
        self.uses = 1
        self.expects = False
        self.error: BaseException | None = None

    async def end(self, error: BaseException | None) -> None:
        """One use has ended, with that error or well. The last one releases, as `Guard.leave` does."""
        self.error = self.error or error
        self.uses -= 1
        if self.uses:
            return
        if self.registry.get(self.key) is self:
            del self.registry[self.key]
        await self.guard.leave(self.error)


class Registry(dict[Key, Hold]):
    """The holds of one request."""

    async def take(
        self, key: Key, mode: Mode, acquire: Callable[[], Awaitable[Guard]], *, expects: bool = False
    ) -> Hold:
        """Join what this request holds already, or acquire. One mode per name: the other one is refused at once.

        A use that `expects` a generation cannot join one that did not: its condition would never be looked at.
        """
        hold = self.get(key)
        if hold is not None and hold.guard.valid:
            if hold.mode != mode:
                raise LockUpgradeError(
                    f"this request uses {key.name!r} in two modes, {hold.mode} and {mode}: take the write guard alone"
                )
            if expects and not hold.expects:
                raise LockReentrantError(
                    f"this request took {key.name!r} before its If-Match was looked at: give if_match= to the guard "
                    "that comes first, such as the router's"
                )
            hold.uses += 1
            return hold
        hold = Hold(self, key, mode, await acquire())
        hold.expects = expects
        # A task of this request may have been faster: then each has its own, and only that one is shared.
        if (other := self.get(key)) is None or not other.guard.valid:
            self[key] = hold
        return hold


def registry_of(conn: HTTPConnection) -> Registry:
    """The registry of this request."""
    registry: Registry | None = conn.scope.get(_SCOPE)
    if registry is None:
        registry = conn.scope[_SCOPE] = Registry()
    return registry


async def end_all(holds: list[Hold], error: BaseException | None) -> LockNotOwnedError | None:
    """End one use of each hold, the last taken first, whatever happens. Returns the loss of a lease, if there was one.

    A store that does not confirm a release is logged and nothing more: the work is done, and the release goes on in
    the background until the lease has ended.
    """
    lost: LockNotOwnedError | None = None
    trouble: BaseException | None = None
    for hold in reversed(holds):
        try:
            await hold.end(error)
        except LockNotOwnedError as loss:
            lost = lost or loss
        except BackendError as silence:
            _log.warning("the release of %r is not confirmed, it goes on: %s", hold.key.name, silence)
        except BaseException as other:
            # Cancelled, as a rule: this release is on its way without us, and the others must go out too.
            trouble = trouble or other
    if trouble:
        raise trouble
    return lost
