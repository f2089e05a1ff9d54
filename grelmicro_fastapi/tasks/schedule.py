"""When work is due: pure functions of an instant, in seconds since 1970."""

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from grelmicro_fastapi.errors import SettingsValidationError
from grelmicro_fastapi.settings import seconds, text


class Schedule(Protocol):
    """A rule that yields instants."""

    def after(self, instant: float) -> float:
        """The first due instant later than that one."""
        ...

    def latest(self, instant: float) -> float:
        """The last due instant that is not later than that one."""
        ...


@dataclass(frozen=True, slots=True)
class Every:
    """At every multiple of so many seconds, so that all processes mean the same instants."""

    seconds: float

    def __post_init__(self) -> None:
        seconds("every=", self.seconds, least=0.001)

    def after(self, instant: float) -> float:
        """The next multiple."""
        return (math.floor(instant / self.seconds + 1e-9) + 1) * self.seconds

    def latest(self, instant: float) -> float:
        """The last multiple."""
        return math.floor(instant / self.seconds + 1e-9) * self.seconds


@dataclass(frozen=True, slots=True)
class Cron:
    """At the times of a cron expression, by the clocks of a time zone.

    Where clocks go forward, what the gap swallows is due right after it. Where they go back, fixed times are due once
    and repeated ones (`*/10 * * * *`) go on through both hours.
    """

    expression: str
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        text("a cron expression", self.expression)
        text("timezone=", self.timezone)
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise SettingsValidationError(
                f"timezone={self.timezone!r} is not known here: use a name such as Europe/Berlin, and install tzdata "
                "where the system has no time zones"
            ) from None
        try:
            CronSim(self.expression, datetime.now(ZoneInfo(self.timezone)))
        except CronSimError as error:
            raise SettingsValidationError(f"{self.expression!r} is not a cron expression: {error}") from None

    def after(self, instant: float) -> float:
        """The next time. A time that never comes (31 February) is infinitely late."""
        return self._find(instant, back=False)

    def latest(self, instant: float) -> float:
        """The last time, that instant included."""
        return self._find(math.floor(instant) + 1, back=True)

    def _find(self, instant: float, *, back: bool) -> float:
        start = datetime.fromtimestamp(instant, ZoneInfo(self.timezone))
        try:
            return next(CronSim(self.expression, start, reverse=back)).timestamp()
        except StopIteration:
            return -math.inf if back else math.inf
