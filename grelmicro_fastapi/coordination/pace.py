"""How fast the store answers, and what follows from it."""

from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.coordination.state import CLAIM

_RECENT = 5.0


class Pace:
    """Remembers the last reply, and the slowest recent one: of the last five to ten seconds."""

    def __init__(self, clock: Clock, place: float) -> None:
        self._clock = clock
        self._shortest_place = int(place * 1000)
        self._now = self._before = 0.0
        self._turned = clock.now()
        self.claim = CLAIM
        """The window, in ms, of the seats that our commands call."""
        self.place = self._shortest_place
        """How long, in ms, our own seats last without asking."""
        self.prompt = True
        """Did the last reply come within half of the shortest window?"""

    def took(self, seconds: float) -> None:
        """Note how long a reply took."""
        now = self._clock.now()
        self.prompt = 2000 * seconds <= CLAIM
        if now - self._turned > _RECENT:
            self._before = self._now if now - self._turned < 2 * _RECENT else 0.0
            self._now, self._turned = 0.0, now
        elif seconds <= self._now:
            return
        self._now = max(self._now, seconds)
        slowest = max(self._now, self._before)
        self.claim = max(CLAIM, int(2000 * slowest))
        self.place = max(self._shortest_place, int(4000 * slowest))
