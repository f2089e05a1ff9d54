"""A worker that leads or stands by, under a real server. It says on its output when it stands, and when it leads."""

import asyncio
import os
import time

import uvicorn
from fastapi import FastAPI

from grelmicro_fastapi import Coordination, Grelmicro, Tasks
from grelmicro_fastapi.providers.urls import provider_from_url

tasks = Tasks()
micro = Grelmicro(uses=[Coordination(provider_from_url(os.environ["COORDINATION_URL"]), requires="host"), tasks])
app = FastAPI(lifespan=micro.lifespan)


@tasks.every(3600)
async def stand() -> None:
    print("stands", time.monotonic(), flush=True)


@tasks.leader_only()
async def reign() -> None:
    print("leads", time.monotonic(), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvicorn.run(app, port=0, log_level="critical")
