"""How a background task is doing, for health pages and metrics."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Stage = Literal["waiting", "standby", "running", "backoff", "stopped", "failed"]


@dataclass(slots=True)
class TaskHealth:
    """Counted since this process opened the task. `standby` waits for leadership; `failed` has given up.

    `missed` runs did not take place or did not end, `skipped` ones came while the one before still ran. A body that
    ignores its cancellation is `stuck`.
    """

    name: str
    stage: Stage = "waiting"
    runs: int = 0
    failures: int = 0
    consecutive_failures: int = 0
    missed: int = 0
    skipped: int = 0
    stuck: bool = False
    last_success: datetime | None = None
    last_error: str | None = None
    running_since: datetime | None = None
    next_run: datetime | None = None
