"""Who waits: how long, and what that costs, also when a process among them dies or limps."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from bench import servers
from bench.contests import contention, fresh, readers_among_writers
from bench.members import Member, fleet, member
from bench.row import Block, Row
from grelmicro_fastapi.coordination import ReadWriteLock
from grelmicro_fastapi.coordination.state import CLAIM
from grelmicro_fastapi.providers.redis import RedisProvider
from tests.faultproxy import Fault, fault_proxy

LATE = 2.5


@asynccontextmanager
async def rows() -> AsyncGenerator[list[Row]]:
    with servers.redis() as server:
        async with (
            fleet("ours", server.url, 4) as members,
            RedisProvider(server.url) as provider,
            fault_proxy(server.port) as proxy,
            member("ours", f"redis://127.0.0.1:{proxy.port}") as late,
        ):
            # From now on all that the server says to that process is late.
            proxy.down = Fault(delay=LATE)
            queued = _Queued(provider, members)
            yield [
                Row(
                    "redis: longest wait of 100 readers / two write holds and a hand-over",
                    readers_among_writers(members[0], members[1:3]),
                    1.0,
                    kind="alone",
                ),
                Row(
                    "redis: the next in line is killed, beyond a hand-over",
                    queued.next_is_killed(server.url),
                    CLAIM + 2,
                    queued.next_is_well,
                    kind="difference",
                    unit="ms",
                    scale=1000,
                    note=f"budget: the window of {CLAIM} ms, and a tick each of the server's clock and of a timer",
                ),
                Row(
                    f"redis: cost of a turn, one of 4 processes {LATE:g} s late / none",
                    contention([*members[1:], late], seconds=8.0),
                    4.0,
                    contention(members, seconds=2.0),
                    of="cost",
                    at_most=5,
                ),
                Row(
                    "redis: commands of idle waiters, by process and second",
                    _idle(server, members),
                    1.0,
                    kind="alone",
                    unit="/s",
                    at_most=5,
                ),
            ]


class _Queued:
    """Members who queue for one name in a known order."""

    def __init__(self, looking: RedisProvider, members: Sequence[Member]) -> None:
        self._looking = looking
        self._members = members

    async def next_is_well(self) -> float:
        """Seconds from the release until the next one runs."""
        holder, waiter, *_ = self._members
        name = fresh("queue")
        await holder.ask("take", what="write", name=name)
        await self._queue(name, waiter, 1)
        return await self._from_release(name, holder, waiter)

    def next_is_killed(self, url: str) -> Block:
        """The same for the second in line, when the first is dead."""

        async def block() -> float:
            holder, waiter, *_ = self._members
            name = fresh("queue")
            async with member("ours", url) as victim:
                await holder.ask("take", what="write", name=name)
                await self._queue(name, victim, 1)
                await self._queue(name, waiter, 2)
                victim.kill()
            return await self._from_release(name, holder, waiter)

        return block

    async def _queue(self, name: str, waiter: Member, place: int) -> None:
        await waiter.ask("want", what="write", name=name, tasks=1)
        lock = ReadWriteLock(name, backend=self._looking)
        # Another process queues: nothing here could tell that it has.
        while (await lock.state()).waiting_writers < place:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)

    async def _from_release(self, name: str, holder: Member, waiter: Member) -> float:
        released = await holder.ask("give", name=name)
        return float(await waiter.ask("granted", name=name) - released)


def _idle(server: servers.Server, members: Sequence[Member]) -> Block:
    """How many commands waiters cost whom nothing happens to."""
    window = 5.0  # in whole seconds, for waiters ask at most once in each

    async def block() -> float:
        holder, *waiters = members
        name = fresh("idle")
        await holder.ask("take", what="write", name=name)
        for waiter in waiters:
            await waiter.ask("want", what="write", name=name, tasks=25)
        await asyncio.sleep(0.5)
        before = _calls(server)
        await asyncio.sleep(window)
        calls = _calls(server) - before
        for waiter in waiters:
            await waiter.ask("forget", name=name)
        await holder.ask("give", name=name)
        return calls / window / len(waiters)

    return block


def _calls(server: servers.Server) -> int:
    with server.client() as client:
        stats = client.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "eval", "fcall"))
