"""How many of one process's writers enter in a row while others wait elsewhere.

To hand a lock on within a process costs a fraction of what it costs between two: the release and the next request are
one round trip. So a process keeps its place for a few short holds, and then queues anew.
"""

from grelmicro_fastapi.coordination.pace import Pace

LONGEST = 4
"""How many enter in a row at the most,"""
TURN = 0.05
"""if that does not take longer, in seconds: to who holds for long, handing on costs little."""


class Run:
    """The grants in a row for which the store kept our place. `on`: the next one enters when the last leaves."""

    def __init__(self) -> None:
        self.on = False
        self._length = 0
        self._since = 0.0

    def extends(self, pace: Pace) -> bool:
        """May our place be kept for yet another? Not while the store is slow to answer us: the others would wait too.

        Only the last reply counts. One that was late, for a disk was busy, must not cost us our runs for seconds, while
        others have theirs: those who wait here would wait four times as long.
        """
        return self._length + 1 < LONGEST and pace.prompt

    def granted(self, kept: bool, asked: float) -> None:
        """One entered who had asked at that time, and our place was kept, or given up."""
        if not self._length:
            self._since = asked
        self.on = kept
        self._length = self._length + 1 if kept else 0

    def left(self, now: float) -> float:
        """How many seconds more it may last."""
        return self._since + TURN - now
