"""One run in the fleet for each tick: claimed on the store's clock, and found again if its claimant died.

A tick is claimed by moving the fence of `tick:{name}` to its instant, and ended by moving it one millisecond on. A
fence that stands on an instant although nobody holds the lease of the run belongs to a run that never ended.
"""

from typing import NamedTuple

from grelmicro_fastapi.coordination.backend import Source, crew_of
from grelmicro_fastapi.coordination.futures import sleep
from grelmicro_fastapi.coordination.guards import LockHandle
from grelmicro_fastapi.coordination.identity import mint, owner
from grelmicro_fastapi.coordination.names import TASKLOCK, TICK
from grelmicro_fastapi.coordination.state import Advance, Mode, Verdict
from grelmicro_fastapi.coordination.view import View
from grelmicro_fastapi.coordination.wish import Wish
from grelmicro_fastapi.errors import BackendError, LockTimeoutError
from grelmicro_fastapi.tasks.schedule import Schedule

_MANY = 1000


class Due(NamedTuple):
    """What the store says: its time, and the latest tick if nobody has claimed it. In seconds since 1970.

    `passed` counts the ticks between the last claimed one and this one; `first` says that none was ever claimed.
    `open` is the last claimed tick if its run has not ended.
    """

    now: float
    instant: float | None
    passed: int = 0
    first: bool = False
    open: float | None = None


class Busy(NamedTuple):
    """A run goes on somewhere, or its claimant died: time may tell after so many seconds."""

    retry: float | None


class Claim(NamedTuple):
    """A tick of ours, in seconds since 1970. `died` is the last tick before whose run never ended: this very one, if it
    is to run once more."""

    instant: float
    token: str
    handle: LockHandle
    died: float | None = None


class Ticks:
    """Claims the ticks of one task."""

    def __init__(self, name: str, schedule: Schedule, lease: float, source: Source | None) -> None:
        self._key = TICK + name
        self._schedule = schedule
        self._source = source
        self._lease = lease
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
        state, now = await crew_of(self._source).courier.peek(self._key)
        instant = self._schedule.latest(now / 1000)
        if not _is_after(instant, state.fence):
            return Due(now / 1000, None, open=self._open(state.fence))
        passed = self._passed(state.fence / 1000, instant) if state.fence else 0
        return Due(now / 1000, instant, passed, not state.fence, self._open(state.fence))

    async def claim(self, instant: float, *, catch_up: bool) -> Claim | Busy | None:
        """Claim that tick for this process; None if another one has it.

        With `catch_up` a run that never ended goes first, and this tick is left for later.
        """
        try:
            handle = await self._runs.acquire(timeout=0)
        except LockTimeoutError as busy:
            return Busy(busy.retry_after)
        try:
            token = mint(None, owner())
            # Nobody else is at a run: one that has not ended never will.
            died = self._open((await crew_of(self._source).courier.peek(self._key)).state.fence)
            if died is not None and catch_up:
                return Claim(died, token, handle, died)
            if await self._advance(token, _ms(instant)):
                return Claim(instant, token, handle, died)
        except BaseException as error:
            await handle.leave(error)
            raise
        await handle.release()
        return None

    async def write_off(self, instant: float) -> bool:
        """Let that tick count as ended: it comes too late, or its claimant died. Was it this process who did?"""
        return await self._advance(mint(None, owner()), _ms(instant) + 1)

    async def end(self, claim: Claim, error: BaseException | None) -> None:
        """The run of that tick has ended with that error, or well; only one that was cancelled has not ended.

        Raises `LockNotOwnedError` if the run was cancelled because its lease was lost.
        """
        try:
            if error is None or isinstance(error, Exception):
                await self._ended(claim)
        finally:
            await claim.handle.leave(error)

    async def _ended(self, claim: Claim) -> None:
        crew, to = crew_of(self._source), _ms(claim.instant) + 1
        command = Advance(claim.token, to)
        try:
            while (await crew.courier.ask(self._key, command)).verdict is Verdict.EARLY:
                # It took less than a millisecond.
                await sleep(crew.clock, 0.001)
        except BackendError:
            # Or the next claimant would take it for one that never ended.
            crew.courier.insist(self._key, command, self._lease)

    def _open(self, fence: int) -> float | None:
        # A run that ended stands a millisecond behind its tick.
        stands = self._schedule.latest(fence / 1000 + 0.0005)
        return stands if fence and _ms(stands) == fence else None

    async def _advance(self, token: str, to: int) -> bool:
        reply = await crew_of(self._source).courier.ask(self._key, Advance(token, to))
        return reply.verdict is Verdict.GRANTED

    def _passed(self, last: float, instant: float) -> int:
        count = 0
        while count < _MANY and _ms(last := self._schedule.after(last)) < _ms(instant):
            count += 1
        return count


def _ms(instant: float) -> int:
    return round(instant * 1000)


def _is_after(instant: float, fence: int) -> bool:
    # A time that never was (the 31st of February) lies infinitely far back.
    return instant > 0 and _ms(instant) > fence
