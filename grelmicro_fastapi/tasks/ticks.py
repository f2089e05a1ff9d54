"""One run in the fleet for each tick: claimed on the store's clock, and found again if its claimant died.

A tick is claimed by moving the fence of `tick:{name}` to its instant, and ended by moving it one millisecond on. A
fence that stands on an instant although nobody holds the lease of the run belongs to a run that never ended.
"""

from typing import NamedTuple

from grelmicro_fastapi.coordination.backend import Source, crew_of
from grelmicro_fastapi.coordination.guards import LockHandle
from grelmicro_fastapi.coordination.identity import mint, owner
from grelmicro_fastapi.coordination.names import TASKLOCK, TICK
from grelmicro_fastapi.coordination.state import Advance, Mode, Verdict
from grelmicro_fastapi.coordination.view import View
from grelmicro_fastapi.coordination.wish import Wish
from grelmicro_fastapi.errors import WouldBlockError
from grelmicro_fastapi.tasks.schedule import Schedule

_MANY = 1000


class Due(NamedTuple):
    """What the store says: its time, and the latest tick if nobody has claimed it. In seconds since 1970.

    `passed` counts the ticks between the last claimed one and this one: nobody was there to claim them.
    """

    now: float
    instant: float | None
    passed: int = 0


class Claim(NamedTuple):
    """A tick of ours, in seconds since 1970. `died` is the tick before it if its run never ended; `again` says that
    this very tick is one, and runs once more."""

    instant: float
    token: str
    handle: LockHandle
    died: float | None = None
    again: bool = False


class Ticks:
    """Claims the ticks of one task."""

    def __init__(self, name: str, schedule: Schedule, lease: float, source: Source | None) -> None:
        self._key = TICK + name
        self._schedule = schedule
        self._source = source
        wish = Wish(
            name,
            TASKLOCK + TICK + name,
            Mode.WRITE,
            lease,
            retry_interval=lease,
            retry_jitter=0.0,
            worker=None,
            keep_alive=True,
            cancels=True,
            max_hold=None,
        )
        self._runs = View(wish, source, LockHandle)

    async def due(self) -> Due:
        """Look, without claiming anything. Raises `BackendError` if the store does not say."""
        state, now = await crew_of(self._source).store.peek(self._key)
        instant = self._schedule.latest(now / 1000)
        if round(instant * 1000) <= state.fence:
            return Due(now / 1000, None)
        return Due(now / 1000, instant, self._passed(state.fence / 1000, instant) if state.fence else 0)

    async def claim(self, instant: float, *, catch_up: bool) -> Claim | None:
        """Claim that tick for this process; None if another one has it, or is at the one before it still.

        With `catch_up` a run that never ended goes first, and this tick is left for later.
        """
        try:
            handle = await self._runs.acquire(timeout=0)
        except WouldBlockError:
            return None
        try:
            token = mint(None, owner())
            died = await self._died()
            if died is not None and catch_up:
                return Claim(died, token, handle, again=True)
            if await self._advance(token, round(instant * 1000)):
                return Claim(instant, token, handle, died)
        except BaseException as error:
            await handle.leave(error)
            raise
        await handle.release()
        return None

    async def end(self, claim: Claim, error: BaseException | None) -> None:
        """The run of that tick has ended with that error, or well.

        Raises `LockNotOwnedError` if the run was cancelled because its lease was lost.
        """
        try:
            if claim.handle.valid:
                await self._advance(claim.token, round(claim.instant * 1000) + 1)
        finally:
            await claim.handle.leave(error)

    async def _died(self) -> float | None:
        state, _ = await crew_of(self._source).store.peek(self._key)
        # A run that ended stands a millisecond behind its tick.
        stands = self._schedule.latest(state.fence / 1000 + 0.0005)
        return stands if state.fence and round(stands * 1000) == state.fence else None

    async def _advance(self, token: str, to: int) -> bool:
        reply = await crew_of(self._source).courier.ask(self._key, Advance(token, to))
        return reply.verdict is Verdict.GRANTED

    def _passed(self, last: float, instant: float) -> int:
        count = 0
        while count < _MANY and (last := self._schedule.after(last)) < instant:
            count += 1
        return count
