"""grelmicro in a Python environment of its own: it measures what each line of its input names, and says the seconds."""

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from grelmicro.coordination import Lock, ReadWriteLock
from grelmicro.providers.memory import MemoryProvider
from grelmicro.providers.sqlite import SQLiteProvider

from bench.stopwatch import Once, of_microseconds, of_milliseconds, together

TASKS = 50


async def main() -> None:
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        memory = await stack.enter_async_context(MemoryProvider())
        sqlite = await stack.enter_async_context(SQLiteProvider(Path(folder, "locks.sqlite")))
        plain = await stack.enter_async_context(memory.lock())
        in_memory = await stack.enter_async_context(memory.readwritelock())
        in_file = await stack.enter_async_context(sqlite.readwritelock())
        catalog = ReadWriteLock("catalog", backend=in_memory)
        orders = [ReadWriteLock(f"order:{number}", backend=in_file) for number in range(TASKS)]
        blocks: dict[str, Callable[[], Awaitable[float]]] = {
            "memory lock": partial(of_microseconds, _pair(Lock("sweep", backend=plain))),
            "memory read": partial(of_microseconds, _pair(catalog.read)),
            "memory write": partial(of_microseconds, _pair(catalog.write)),
            "sqlite write": partial(of_milliseconds, _pair(ReadWriteLock("catalog", backend=in_file).write)),
            "sqlite together": partial(together, [_pair(order.write) for order in orders]),
        }
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(await blocks[line.strip()](), flush=True)


def _pair(lock: Any) -> Once:
    async def pair() -> None:
        await lock.acquire()
        await lock.release()

    return pair


if __name__ == "__main__":
    asyncio.run(main())
