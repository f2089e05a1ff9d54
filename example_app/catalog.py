"""The catalog: everybody reads it at once, or one replaces it alone."""

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel, JsonValue

from example_app.database import Data
from example_app.settings import settings
from grelmicro_fastapi import ReadGuard, WriteGuard, read_guard, write_guard

CatalogRead = Annotated[
    ReadGuard, Depends(read_guard("catalog", lease_duration=settings.example_lease, wait=settings.wait))
]
CatalogWrite = Annotated[
    WriteGuard, Depends(write_guard("catalog", lease_duration=settings.example_lease, wait=settings.wait))
]

router = APIRouter()


class Rows(BaseModel):
    """What a catalog is made of. The shop does not care what they are."""

    rows: list[JsonValue]


class Catalog(Rows):
    """The catalog, and how many times it has been replaced, or nearly."""

    generation: int


class Replaced(BaseModel):
    """The proof of a replacement. `poisoned`: the writer before died, and left nobody knows what."""

    fencing_token: int
    poisoned: bool


@router.get("/catalog")
async def show(data: Data, guard: CatalogRead) -> Catalog:
    """Nobody writes while we read, so rows and generation belong together."""
    return Catalog(rows=await data.rows(), generation=guard.generation)


@router.put("/catalog")
async def replace(new: Rows, data: Data, guard: CatalogWrite) -> Replaced:
    """Whatever a writer that died may have left half done, this replaces it as a whole: that is the repair."""
    await data.replace(new.rows, token=guard.fencing_token)
    return Replaced(fencing_token=guard.fencing_token, poisoned=guard.poisoned)
