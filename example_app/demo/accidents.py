"""What happens to workers in production, done on purpose at the worst moment: while they hold a lock."""

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from example_app.demo.client import Client
from example_app.demo.fleet import Fleet
from example_app.demo.history import Outcome, Update
from example_app.demo.load import Record
from grelmicro_fastapi.coordination import ReadWriteLock
from grelmicro_fastapi.providers.base import Provider

SKU = "melon"
_LOOKS = 0.002

Say = Callable[[str], None]


class Stage(NamedTuple):
    """Where accidents happen. `provider` looks at the same locks as the workers do; `pause` is that of the shop."""

    fleet: Fleet
    provider: Provider
    record: Record
    say: Say
    pause: float


async def kill_a_holder(stage: Stage) -> None:
    """Kill a worker that holds a lock. The next one gets it when the lease is over, and is told."""
    async with Client(stage.fleet.url) as client, asyncio.TaskGroup() as asked:
        worker, update = await _catch(stage, client, asked, stage.fleet.kill)
        stage.say(f"worker {worker} holds {SKU!r}: kill -9")
        await _succeed(stage)
        await update
    stage.say("what the killed worker was asked for has no answer: the client must take it for unknown")


async def freeze_a_holder(stage: Stage) -> None:
    """Stop a worker for longer than its lease. When it goes on, it finds its token refused."""
    async with Client(stage.fleet.url) as client, asyncio.TaskGroup() as asked:
        worker, update = await _catch(stage, client, asked, stage.fleet.freeze)
        try:
            stage.say(f"worker {worker} holds {SKU!r}: stopped in the middle (SIGSTOP)")
            await _succeed(stage)
        finally:
            stage.fleet.thaw(worker)
        late = await update
    ends = {
        "": "it had written already",
        "fenced": "the table refuses its token (409 fenced)",
        "guard-lost": "it is told that its guard is lost (503)",
    }
    stage.say(f"worker {worker} goes on as if nothing had happened: {ends.get(late.problem, late.problem)}")


async def noted(stage: Stage, client: Client, worker: int | None) -> Update:
    """Increment, and note what came of it: nobody knows, if the demo ends meanwhile."""
    sent = time.monotonic()
    try:
        update = await client.increment(SKU)
    except asyncio.CancelledError:
        stage.record.note(Update(SKU, sent, time.monotonic(), Outcome.UNKNOWN), worker)
        raise
    stage.record.note(update, worker)
    return update


async def _catch(
    stage: Stage, client: Client, asked: asyncio.TaskGroup, trap: Callable[[int], None]
) -> tuple[int, asyncio.Task[Update]]:
    """Do something to a worker at a moment at which it holds the lock for this client, and nobody else wants it."""
    lock = ReadWriteLock(f"stock:{SKU}", backend=stage.provider)
    while True:
        worker = await client.meet()
        update = asked.create_task(noted(stage, client, worker))
        while True:
            if update.done() or (await lock.state()).writing:
                break
            await asyncio.sleep(_LOOKS)
        # The store knows of a grant before its worker does: let it get into the middle.
        await asyncio.sleep(stage.pause / 2)
        # On a busy machine that moment may have been too long.
        if not update.done() and (await lock.state()).writing:
            trap(worker)
            return worker, update
        await update


async def _succeed(stage: Stage) -> None:
    """Be the next writer."""
    start = time.monotonic()
    while True:
        async with Client(stage.fleet.url) as client:
            update = await noted(stage, client, None)
        if update.outcome is Outcome.ACKNOWLEDGED:
            break
    waited = time.monotonic() - start
    stage.say(
        f"the next writer of {SKU!r} waited {waited:.1f} s: token {update.token},"
        f" poisoned: {str(update.poisoned).lower()}"
    )
