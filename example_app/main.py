"""A small, honest shop.

uvicorn example_app.main:app --workers 4
"""

import os

from fastapi import FastAPI
from pydantic import BaseModel

from example_app import background, catalog, stock
from example_app.database import shop
from example_app.settings import settings
from grelmicro_fastapi import Coordination, Grelmicro
from grelmicro_fastapi.providers.urls import provider_from_url

# The shop's own data is a file of this machine, so locks need not reach further.
locks = Coordination(provider_from_url(settings.coordination_url), requires="host")
micro = Grelmicro(uses=[locks, shop, background.tasks])

app = FastAPI(title="A small shop")
micro.install(app)
app.include_router(catalog.router)
app.include_router(stock.router)
app.include_router(background.router)


class Worker(BaseModel):
    """A process of the service."""

    pid: int


@app.get("/whoami")
async def whoami() -> Worker:
    """Which worker answers. A connection that is kept open stays with its worker."""
    return Worker(pid=os.getpid())
