"""Work in the background: what only the leader does, and what the fleet does once each second."""

import os

from fastapi import APIRouter
from pydantic import BaseModel

from example_app.database import Data, shop
from example_app.settings import settings
from grelmicro_fastapi import LeaderElection, Leadership, TaskContext, Tasks

_LEASE = settings.example_lease

# A leader that died is succeeded after a lease. One that is told to stop hands over at once.
election = LeaderElection(
    "shop",
    lease_duration=_LEASE,
    renew_deadline=_LEASE * 2 / 3,
    retry_interval=_LEASE / 6,
    backend_timeout=_LEASE / 3,
)
tasks = Tasks(election=election)
router = APIRouter()


@tasks.leader_only(every=0.5)
async def sweep(leadership: Leadership) -> None:
    """Leave a trace with the token of this term. The table refuses it, should another worker lead by now."""
    await shop.database.sweep(os.getpid(), token=leadership.fencing_token)


@tasks.every(1, on="cluster")
async def tick(context: TaskContext) -> None:
    """Count each second in one worker, whichever is the first to claim it."""
    assert context.scheduled_at
    await shop.database.tick(os.getpid(), round(context.scheduled_at.timestamp()))


class Leader(BaseModel):
    """Does this worker lead? `term` is the number of its term, 0 if it does not."""

    pid: int
    leading: bool
    term: int


class Sweep(BaseModel):
    """One sweep, by which worker, under which token."""

    pid: int
    fencing_token: int


class Tick(BaseModel):
    """One second since 1970, and the worker that counted it."""

    pid: int
    second: int


@router.get("/leader")
async def leader() -> Leader:
    """Asks nobody: a leader knows that it leads, or it does not lead."""
    leading = election.leadership
    return Leader(pid=os.getpid(), leading=leading is not None, term=leading.term if leading else 0)


@router.get("/sweeps")
async def sweeps(data: Data) -> list[Sweep]:
    """The last sweeps. Tokens only rise."""
    return [Sweep(pid=pid, fencing_token=token) for pid, token in await data.sweeps()]


@router.get("/ticks")
async def ticks(data: Data) -> list[Tick]:
    """The last seconds that were counted, each once however many workers there are."""
    return [Tick(pid=pid, second=second) for pid, second in await data.ticks()]
