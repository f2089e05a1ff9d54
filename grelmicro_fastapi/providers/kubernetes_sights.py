"""What this process has seen of each Lease, and since when."""

from collections import OrderedDict
from collections.abc import Callable

from grelmicro_fastapi.coordination.state import State
from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers.kubernetes_names import Lease, part
from grelmicro_fastapi.providers.kubernetes_record import Seen, load, version_of

_MOST = 2048


class Sight:
    """One key, as this process knows it."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.lease: Lease | None = None
        """The newest that we have seen, or None where we must look."""
        self.seen: Seen = {}
        self.fence = 0
        """The highest that we have seen: a Lease that somebody deletes and makes anew does not go back."""

    def saw(self, lease: Lease, now: int) -> None:
        """Remember a Lease that came at `now`, unless a newer one came before. Raises if its record is damaged."""
        if self._knows_newer(lease):
            return
        if self.lease and _uid(lease) != _uid(self.lease):
            self.seen = {}
        state, seen = load(self.key, lease, self.seen, now)
        self.keep(lease, state, seen)

    def keep(self, lease: Lease, state: State, seen: Seen) -> None:
        """Remember what we know for certain, because we have written it ourselves."""
        if self._knows_newer(lease):
            return
        self.lease, self.seen = lease, seen
        if not state.claimant:
            self.fence = max(self.fence, state.fence)

    def state(self, now: int) -> State:
        """The state as it is by what we know. A copy."""
        if self.lease is None:
            return State(self.fence)
        state, _ = load(self.key, self.lease, self.seen, now)
        if not state.claimant:
            state.fence = max(self.fence, state.fence)
        return state

    def doubt(self, lease: Lease | None) -> None:
        """That one is out of date, or may be: look again, unless a newer one has come meanwhile."""
        if self.lease is lease:
            self.lease = None

    def _knows_newer(self, lease: Lease) -> bool:
        known = self.lease
        return known is not None and _uid(lease) == _uid(known) and version_of(lease) < version_of(known)


class Sights:
    """The latest keys. Who is forgotten here is met anew, and given a whole lease again: late, but never early."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._known: OrderedDict[str, Sight] = OrderedDict()

    def of(self, key: str) -> Sight:
        """What we know of that key."""
        sight = self._known.get(key)
        if sight is None:
            sight = self._known[key] = Sight(key)
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return sight

    def saw(self, key: str, lease: Lease) -> Sight | None:
        """Remember a Lease that has just come; None if it cannot be read."""
        sight = self.of(key)
        try:
            sight.saw(lease, self._now())
        except BackendError:
            # Whoever asks for that key is told.
            return None
        return sight


def _uid(lease: Lease) -> object:
    return part(lease, "metadata").get("uid")
