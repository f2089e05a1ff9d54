"""Which leases are held on one loop, and by whom."""

from collections.abc import Iterable, Iterator
from contextvars import ContextVar

from grelmicro_fastapi.coordination.holder import Holder
from grelmicro_fastapi.coordination.identity import Owner, owner
from grelmicro_fastapi.coordination.lease import Lease
from grelmicro_fastapi.coordination.state import Mode
from grelmicro_fastapi.coordination.wish import Wish
from grelmicro_fastapi.errors import LockReentrantError, LockUpgradeError

_reading: "ContextVar[tuple[Lease, ...]]" = ContextVar("grelmicro_fastapi_reading", default=())
"""The read leases that this task took or descends from."""


class Register:
    """Knows the leases of one loop: what a task holds it must not wait for."""

    def __init__(self) -> None:
        self.leases: dict[str, Lease | dict[Owner, Lease]] = {}
        """By key. Nearly every key has one lease at a time; only a shared one needs to be searched by owner."""
        self._crowded = self._busy = 1024
        """How many keys, and how many leases of one key, are looked through for dead ones."""

    def nests(self, wish: Wish, who: Owner) -> Lease | None:
        """Return the read lease to join, if any. Raises if the owner would wait for itself."""
        if wish.key not in self.leases:
            return None
        lease = self._of(wish.key, who)
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
                if (
                    lease.wish.key == wish.key
                    and lease.home is self
                    and lease.valid
                    and (not lease.grip or lease.grip())
                ):
                    return lease
        return None

    def took(self, lease: Lease) -> None:
        """Count a lease as held here, by its first holder."""
        held, key = self.leases, lease.wish.key
        if key in held:
            shared = self._shared(key)
            if len(shared) >= self._busy:
                self._thin_out(shared)
            shared[lease.owner] = lease
        else:
            if len(held) >= self._crowded:
                self._forget_the_dead()
            held[key] = lease
        if lease.wish.mode is Mode.READ:
            lease.home = self
            before = _reading.get()
            _reading.set((*[other for other in before if other.valid], lease) if before else (lease,))

    def joined(self, lease: Lease, holder: Holder) -> None:
        """Count one more holder of a lease."""
        lease.joined = (*lease.joined, holder)
        if self.leases.get(lease.wish.key) is not lease:
            self._shared(lease.wish.key)[holder.owner] = lease

    def parted(self, lease: Lease, holder: Holder) -> bool:
        """Count one holder less, if it was one. Does nobody hold it any more?"""
        if lease.held_by(holder):
            who, key = holder.owner, lease.wish.key
            lease.let_go(holder)
            held = self.leases.get(key)
            if held is lease:
                if lease.free:
                    del self.leases[key]
            elif isinstance(held, dict) and held.get(who) is lease:
                del held[who]
                if not held:
                    del self.leases[key]
        return lease.free

    def forgot(self, lease: Lease) -> None:
        """It is over, though nobody has given it back."""
        key = lease.wish.key
        held = self.leases.get(key)
        if held is lease:
            del self.leases[key]
        elif isinstance(held, dict):
            for who in [who for who, other in held.items() if other is lease]:
                del held[who]
            if not held:
                del self.leases[key]

    def taken(self, key: str, source: object) -> Lease | None:
        """The lease that the running task took through that object, lost or not, or None."""
        who = owner()
        lease = self._of(key, who)
        return lease if lease and lease.holder(who, source) else None

    def holds(self, key: str) -> bool:
        """Is a valid lease of that key held on this loop?"""
        return any(lease.valid for lease in self._all(key))

    def held(self) -> Iterator[Lease]:
        """Every valid lease of this loop."""
        for key in list(self.leases):
            yield from {lease: None for lease in self._all(key) if lease.valid}

    def _of(self, key: str, who: Owner) -> Lease | None:
        held = self.leases.get(key)
        if isinstance(held, dict):
            return held.get(who)
        return held if held and any(holder.owner is who for holder in held.holders) else None

    def _all(self, key: str) -> Iterable[Lease]:
        held = self.leases.get(key)
        return list(held.values()) if isinstance(held, dict) else [held] if held else []

    def _shared(self, key: str) -> dict[Owner, Lease]:
        held = self.leases.get(key)
        if not isinstance(held, dict):
            held = self.leases[key] = {} if held is None else {holder.owner: held for holder in held.holders}
        return held

    def _thin_out(self, shared: dict[Owner, Lease]) -> None:
        for who in [who for who, lease in shared.items() if not lease.valid]:
            del shared[who]
        self._busy = max(1024, 2 * len(shared))

    def _forget_the_dead(self) -> None:
        """Drop what was never given back and has ended by itself."""
        for key in list(self.leases):
            if not any(lease.valid for lease in self._all(key)):
                del self.leases[key]
        self._crowded = max(1024, 2 * len(self.leases))
