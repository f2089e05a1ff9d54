"""The shop, with a body that reigns as long as its worker leads, a slow request and a stream."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.responses import StreamingResponse

from example_app.background import tasks
from example_app.main import app as app
from grelmicro_fastapi import Leadership, TaskContext

_CHRONICLE = Path(os.environ["EXAMPLE_DATABASE"]).with_name("chronicle")


def note(*words: object) -> None:
    """One line, in one write: the lines of several workers stand in the order of what they tell."""
    with _CHRONICLE.open("ab", buffering=0) as chronicle:
        chronicle.write(" ".join(map(str, words)).encode() + b"\n")


@tasks.leader_only()
async def reign(leadership: Leadership) -> None:
    note("begins", os.getpid(), leadership.term)
    try:
        await asyncio.Event().wait()
    finally:
        # It takes a while to put things in order.
        await asyncio.sleep(0.2)
        note("ends", os.getpid(), leadership.term)


@tasks.every(0.25, on="cluster")
async def quick(context: TaskContext) -> None:
    assert context.scheduled_at
    note("ticks", os.getpid(), round(context.scheduled_at.timestamp() * 1000))


@app.get("/slow")
async def slow() -> str:
    await asyncio.sleep(3)
    note("answers", os.getpid(), 0)
    return "done"


@app.get("/stream")
async def stream() -> StreamingResponse:
    async def chunks() -> AsyncIterator[str]:
        for number in range(15):
            yield f"{number}\n"
            await asyncio.sleep(0.2)
        note("streamed", os.getpid(), 0)

    return StreamingResponse(chunks())
