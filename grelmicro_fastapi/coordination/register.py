"""Which leases are held on one loop, and by whom."""

from collections.abc import Iterator
from contextvars import ContextVar

from grelmicro_fastapi.coordination.identity import Owner, owner
from grelmicro_fastapi.coordination.lease import Holder, Lease
from grelmicro_fastapi.coordination.state import Mode
from grelmicro_fastapi.coordination.wish import Wish
from grelmicro_fastapi.errors import LockReentrantError, LockUpgradeError

_reading: "ContextVar[tuple[Lease, ...]]" = ContextVar("grelmicro_fastapi_reading", default=())
"""The read leases that this task took or descends from."""


class Register:
    """Knows the leases of one loop: what a task holds it must not wait for."""

    def __init__(self) -> None:
        self._leases: dict[str, dict[Lease, None]] = {}
        self._owned: dict[tuple[str, Owner], Lease] = {}
        self._crowded = 1024

    def nests(self, wish: Wish, who: Owner) -> Lease | None:
        """Return the read lease to join, if any. Raises if the owner would wait for itself."""
        leases = self._leases.get(wish.key)
        if leases is None:
            return None
        lease = self._owned.get((wish.key, who))
        if lease is not None and lease.valid:
            if wish.mode is Mode.WRITE and lease.wish.mode is Mode.READ:
                raise LockUpgradeError(
                    f"this task reads {wish.name!r} and asks to write it: two such would wait for each other for "
                    "ever, so take the write lock from the start"
                )
            raise LockReentrantError(f"this task holds {wish.name!r} already: pass its guard on instead")
        if wish.mode is Mode.READ:
            for lease in _reading.get():
                # One that is kept alive, but whose guards are all gone, is not renewed any more.
                if lease in leases and lease.valid and (lease.grip is None or lease.grip()):
                    return lease
        return None

    def took(self, lease: Lease) -> None:
        """Count a lease as held here, by its first holder."""
        wish = lease.wish
        if len(self._owned) >= self._crowded:
            self._forget_the_dead()
        leases = self._leases.get(wish.key)
        if leases is None:
            self._leases[wish.key] = {lease: None}
        else:
            leases[lease] = None
        self._owned[wish.key, lease.holders[0].owner] = lease
        if wish.mode is Mode.READ:
            before = _reading.get()
            _reading.set((*[other for other in before if other.valid], lease) if before else (lease,))

    def joined(self, lease: Lease, holder: Holder) -> None:
        """Count one more holder of a lease."""
        lease.holders.append(holder)
        self._owned[lease.wish.key, holder.owner] = lease

    def parted(self, lease: Lease, holder: Holder) -> None:
        """Count one holder less. Does nothing if it was none."""
        if holder in lease.holders:
            lease.holders.remove(holder)
            place = (lease.wish.key, holder.owner)
            if self._owned.get(place) is lease:
                del self._owned[place]

    def left(self, lease: Lease) -> None:
        """Count a lease no more. Its last holder may still have to ask again for its release."""
        leases = self._leases.get(lease.wish.key)
        if leases and lease in leases:
            del leases[lease]
            if not leases:
                del self._leases[lease.wish.key]

    def taken(self, key: str, source: object) -> Lease | None:
        """The lease that the running task took through that object, lost or not, or None."""
        who = owner()
        lease = self._owned.get((key, who))
        return lease if lease and lease.holder(who, source) else None

    def holds(self, key: str) -> bool:
        """Is a valid lease of that key held on this loop?"""
        return any(lease.valid for lease in self._leases.get(key, ()))

    def held(self) -> Iterator[Lease]:
        """Every valid lease of this loop."""
        for leases in list(self._leases.values()):
            yield from [lease for lease in leases if lease.valid]

    def _forget_the_dead(self) -> None:
        """Drop what was never given back and has ended by itself."""
        for place, lease in list(self._owned.items()):
            if not lease.valid:
                del self._owned[place]
        for leases in list(self._leases.values()):
            for lease in [lease for lease in leases if not lease.valid]:
                self.left(lease)
        self._crowded = max(1024, 2 * len(self._owned))
