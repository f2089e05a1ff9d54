"""The fence that no new name starts below.

A purged name leaves its Lease behind for a day, with its fence and nothing else. Before that the floor was raised above
it, and the floor is read anew every hour: so nobody makes a Lease anew who has not heard of it.
"""

import copy
from collections.abc import Callable

from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers.kubernetes_api import LeaseApi
from grelmicro_fastapi.providers.kubernetes_errors import ConflictError
from grelmicro_fastapi.providers.kubernetes_names import Lease, Names, part
from grelmicro_fastapi.providers.kubernetes_record import blank

FRESH = 3_600_000
"""How long, in ms, a floor that was read is relied upon."""
STAYS = 86_400_000
"""How long, in ms, the Lease of a purged name stays: much longer than that."""
_TRIES = 10


class Floor:
    """The floor of one application. `now` is our clock in ms."""

    def __init__(self, api: LeaseApi, names: Names, now: Callable[[], int]) -> None:
        self._api = api
        self._names = names
        self._now = now
        self._fence = 0
        self._read: int | None = None

    async def fence(self) -> int:
        """The floor, as it was an hour ago or later."""
        if self._read is None or self._now() - self._read >= FRESH:
            await self.look()
        return self._fence

    async def look(self) -> Lease | None:
        """Read it."""
        asked = self._now()
        lease = await self._api.get(self._names.floor)
        self._fence = max(self._fence, _fence(lease))
        self._read = asked
        return lease

    async def rise(self, fence: int) -> None:
        """Raise it to that fence, should it be lower. Raises `BackendError` if that cannot be made certain."""
        for _ in range(_TRIES):
            lease = await self.look()
            if _fence(lease) >= fence:
                return
            higher = copy.deepcopy(lease) if lease else blank(self._names.floor, self._names.labels)
            higher["spec"] = part(higher, "spec") | {"leaseTransitions": fence}
            try:
                await (self._api.replace(higher) if lease else self._api.create(higher))
            except ConflictError:
                continue
        raise BackendError("the floor of fences could not be raised: too many others are at it")


def _fence(lease: Lease | None) -> int:
    return part(lease or {}, "spec").get("leaseTransitions") or 0
