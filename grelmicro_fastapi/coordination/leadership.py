"""The proof that this process leads, and what others can read of it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import final

from grelmicro_fastapi.coordination.guards import Guard
from grelmicro_fastapi.coordination.state import Mode, State
from grelmicro_fastapi.errors import NotLeaderError


@final
class Leadership(Guard):
    """The proof that this process leads, for one term.

    Bodies that lead get it. It is a guard: `valid`, `lost`, `wait_lost()`; its `check()` raises `NotLeaderError`.
    """

    mode = Mode.WRITE

    @property
    def valid(self) -> bool:
        """True as long as this process leads: not once the lease may have ended, nor once it began to resign."""
        return not self.lease.final and super().valid

    @property
    def fencing_token(self) -> int:
        """The number of this term, higher than that of every term before. Raises `NotLeaderError` once it has ended."""
        return self._prove().fence

    @property
    def term(self) -> int:
        """The number of this term, also after it has ended."""
        return self.lease.fence

    def confirmed_within(self, seconds: float) -> bool:
        """Did the store confirm this term no longer than so many seconds ago?"""
        lease = self.lease
        return self.valid and lease.crew.clock.now() - lease.confirmed <= seconds

    def _gone(self) -> NotLeaderError:
        return NotLeaderError(f"term {self.term} of {self.name!r} has ended: another process may lead")


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """Who leads, as the store knows it. Times are the store's."""

    holder: str
    lease_duration: float
    acquired_at: datetime
    renewed_at: datetime
    transitions: int
    metadata: Mapping[str, str]


def note(worker: str, lease: float, metadata: Mapping[str, str]) -> str:
    """What a leader writes beside its lease, for others to read."""
    return json.dumps({"worker": worker, "lease": lease, "metadata": dict(metadata)}, separators=(",", ":"))


def read_record(state: State) -> LeaderRecord | None:
    """Read who leads from a state without the dead, or None."""
    writer = state.writer
    if writer is None or not writer.token:
        return None
    written = json.loads(writer.note)
    lease = float(written["lease"])
    return LeaderRecord(
        holder=written["worker"],
        lease_duration=lease,
        acquired_at=datetime.fromtimestamp(writer.since / 1000, UTC),
        renewed_at=datetime.fromtimestamp(writer.until / 1000 - lease, UTC),
        transitions=state.fence,
        metadata=written["metadata"],
    )
