"""The stock: a quantity for each article, and a lock for each article."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel

from example_app.database import Data
from example_app.settings import settings
from grelmicro_fastapi import WriteGuard, write_guard

StockWrite = Annotated[
    WriteGuard, Depends(write_guard("stock:{sku}", lease_duration=settings.example_lease, wait=settings.wait))
]

router = APIRouter(prefix="/stock/{sku}")


class Stock(BaseModel):
    """How many there are of an article."""

    sku: str
    quantity: int


class Incremented(Stock):
    """How many there are now. `poisoned`: the writer before died, and whether it has written nobody knows."""

    fencing_token: int
    poisoned: bool


@router.get("")
async def show(sku: str, data: Data) -> Stock:
    """One quantity is never half-written, so it is read without a guard."""
    return Stock(sku=sku, quantity=await data.quantity(sku))


@router.post("/increment")
async def increment(sku: str, data: Data, guard: StockWrite) -> Incremented:
    """Read, pause, write: without the guard, two at a time would read the same and one increment would be lost.

    The token is read with the quantity it vouches for. Should this worker be stopped during the pause, the table
    compares that token with those of the holders that came meanwhile.
    """
    token, quantity = guard.fencing_token, await data.quantity(sku)
    await asyncio.sleep(settings.pause)
    await data.put_quantity(sku, quantity + 1, token=token)
    return Incremented(sku=sku, quantity=quantity + 1, fencing_token=token, poisoned=guard.poisoned)
