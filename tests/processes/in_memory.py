"""A service that several workers must not run: its locks are in memory. As a program it starts them itself."""

import sys

import uvicorn
from fastapi import FastAPI

from grelmicro_fastapi import Grelmicro
from grelmicro_fastapi.providers.memory import MemoryProvider

micro = Grelmicro(uses=[MemoryProvider()])
app = FastAPI(lifespan=micro.lifespan)
app.include_router(micro.health_router())


@app.get("/whoami")
async def whoami() -> dict[str, object]:
    return {}


if __name__ == "__main__":
    uvicorn.run("tests.processes.in_memory:app", port=int(sys.argv[1]), workers=int(sys.argv[2]))
