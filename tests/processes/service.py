"""The shop, and a route that asks for its token too late: what the processes under test serve."""

import asyncio

from example_app.main import app as app
from example_app.settings import settings
from example_app.stock import StockWrite


@app.post("/stock/{sku}/late")
async def late(sku: str, guard: StockWrite) -> int:
    await asyncio.sleep(settings.pause)
    return guard.fencing_token
