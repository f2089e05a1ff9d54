"""One of the processes that hand a lock to and fro: `python -m bench.player URL`."""

import asyncio
import json
import random
import sys
import time

from grelmicro_fastapi.coordination import ReadWriteLock
from grelmicro_fastapi.providers.urls import provider_from_url

TURNS = 10
"""How often it holds the lock in a block."""
HOLD = (0.02, 0.06)
"""Seconds that it holds it, at random, so that nobody polls in step with it."""


async def play(url: str) -> None:
    """For each line that comes in, take turns, and say when each hold began and when its release did."""
    async with provider_from_url(url) as provider:
        lock = ReadWriteLock("token", backend=provider)
        while await asyncio.to_thread(sys.stdin.readline):
            held = list[tuple[int, float, float]]()
            for _ in range(TURNS):
                guard = await lock.write.acquire()
                acquired = time.monotonic()
                await asyncio.sleep(random.uniform(*HOLD))
                token, released = guard.fencing_token, time.monotonic()
                await guard.release()
                held.append((token, acquired, released))
            print(json.dumps(held), flush=True)


if __name__ == "__main__":
    asyncio.run(play(sys.argv[1]))
