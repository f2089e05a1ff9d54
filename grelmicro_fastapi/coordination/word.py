"""What the store said last to those who wait here for one key."""

from grelmicro_fastapi.coordination.courier import fresh
from grelmicro_fastapi.errors import BackendError, LockTimeoutError


class Word:
    """`held`: that somebody is in the way, for `retry` ms at least (0: not by time). Or nothing, for an `error`.

    `ours` says that it is one of us. `heard` stays true when the way is free for the next one: who comes too late then
    was not left without an answer.
    """

    __slots__ = ("error", "failing", "heard", "held", "ours", "retry")

    def __init__(self) -> None:
        self.held = self.heard = self.ours = False
        self.retry = 0
        self.error: BackendError | None = None
        self.failing = 0.0
        """Since when it says nothing."""

    def refused(self, retry: int) -> None:
        """Somebody is in the way."""
        self.held = self.heard = True
        self.ours, self.retry = False, retry

    def granted(self, writes: bool) -> None:
        """One of us is in, and in the way if it writes."""
        self.held = self.heard = writes
        self.ours, self.retry = True, 0

    def freed(self) -> None:
        """Whoever was answered is not in the way, so the next one asks at once."""
        self.held = False
        self.retry = 0

    def overdue(self, name: str) -> Exception:
        """What to tell one whose time is over."""
        if not self.heard:
            return fresh(self.error) if self.error else BackendError(f"the store said nothing of {name!r} in time")
        late = LockTimeoutError(f"{name!r} stayed held by somebody else: wait longer, or try again later")
        late.retry_after = self.retry / 1000 if self.retry else None
        return late
