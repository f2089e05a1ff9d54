"""A service that holds a lock for a minute, leads, and says who it is."""

import asyncio
import os
from typing import Annotated

from fastapi import Depends, FastAPI

from grelmicro_fastapi import Coordination, Grelmicro, Tasks, WriteGuard, write_guard
from grelmicro_fastapi.coordination.identity import default_worker
from grelmicro_fastapi.providers.urls import provider_from_url

tasks = Tasks()
micro = Grelmicro(uses=[Coordination(provider_from_url(os.environ["COORDINATION_URL"]), requires="host"), tasks])
app = FastAPI(lifespan=micro.lifespan)


@tasks.leader_only()
async def reign() -> None:
    await asyncio.Event().wait()


@app.get("/whoami")
async def whoami() -> dict[str, object]:
    return {"pid": os.getpid(), "worker": default_worker(), "leading": tasks.election.is_leader()}


@app.post("/hold")
async def hold(guard: Annotated[WriteGuard, Depends(write_guard("x", lease_duration=60, wait=0))]) -> None:
    await asyncio.sleep(60)
