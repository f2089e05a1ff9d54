"""A process of its own, for the tests of SQLite: `python -m tests.providers.sqlite_process FILE NAME ROUNDS`.

Takes and gives back one lock so often, waiting its turn as the library's waiters do, and adds one to a counter that
only the lock protects. Prints the fences it was granted.
"""

import asyncio
import sys
from pathlib import Path

from grelmicro_fastapi.coordination.state import Acquire, Mode, Release, Reply, Verdict
from grelmicro_fastapi.coordination.store import Ask, Wake
from grelmicro_fastapi.providers.sqlite import SqliteProvider


def count_up(counter: Path) -> None:
    counter.write_text(str(int(counter.read_text()) + 1) if counter.exists() else "1")


async def main(file: str, name: str, rounds: int) -> None:
    store = SqliteProvider(file, synchronous="OFF")._store()
    counter = Path(f"{file}.counter")
    woken = asyncio.Event()

    def wake(wake: Wake | None) -> None:
        if wake is None or wake.after == 0:
            woken.set()

    await store.open()
    listener = asyncio.create_task(store.listen(wake))
    fences: list[int] = []
    for number in range(rounds):
        acquire = Acquire(f"{name}{number}", Mode.WRITE, 60_000, f"{store.channel}/w")
        while True:
            woken.clear()
            (reply,) = await store.apply([Ask("lock:hammered", acquire, 1_000)])
            assert isinstance(reply, Reply), reply
            if reply.verdict is Verdict.GRANTED:
                break
            # Never long: a wake that got lost would show as a process that never comes to its end.
            await woken.wait()
        fences.append(reply.fence)
        count_up(counter)
        await store.apply([Ask("lock:hammered", Release(acquire.token), 1_000)])
    listener.cancel()
    await asyncio.gather(listener, return_exceptions=True)
    await store.close()
    print(*fences)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
