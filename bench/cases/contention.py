"""Many who want the same: in four processes and in one, again and again and once."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager

from bench import servers
from bench.contests import burst, contention
from bench.members import Member, fleet, member, peers
from bench.row import Block, Row, against_peer

PROCESSES, TASKS = 4, 25


@asynccontextmanager
async def rows() -> AsyncGenerator[list[Row]]:
    with servers.redis() as server, servers.postgres() as postgres:
        async with (
            fleet("ours", server.url, PROCESSES) as on_redis,
            fleet("redis_py", server.url, PROCESSES) as redis_py,
            fleet("raw_token", server.url, PROCESSES) as token,
            peers(server.url, PROCESSES) as peer_on_redis,
            fleet("ours", postgres, PROCESSES) as on_postgres,
            peers(postgres, PROCESSES) as peer_on_postgres,
            member("in_process", "asyncio") as bare,
        ):
            title = f"redis: {PROCESSES} x {TASKS} tasks, "
            ours, theirs = contention(on_redis), contention(redis_py)
            yield [
                Row(f"{title}cost / redis-py's Lock", ours, 1 / 0.95, theirs, of="cost"),
                Row(f"{title}p99 wait / redis-py's Lock", ours, 1 / 5, theirs, of="wait"),
                *_fairness(title, ours, theirs),
                *_against_peer(title, ours, peer_on_redis),
                *_on_postgres(f"postgres: {PROCESSES} x {TASKS} tasks, ", contention(on_postgres), peer_on_postgres),
                Row(
                    f"redis: {2 * TASKS} tasks of a process start together / asyncio.Lock",
                    burst(on_redis[:1], tasks=2 * TASKS),
                    1.4,
                    burst([bare], tasks=2 * TASKS),
                ),
                Row(
                    f"redis: {PROCESSES} x {TASKS} tasks start together / raw BLPOP",
                    burst(on_redis, tasks=TASKS),
                    1.5,
                    burst(token, tasks=TASKS),
                ),
            ]


def _fairness(title: str, ours: Block, floor: Block | None) -> Iterator[Row]:
    """What needs no comparison. The floor only says with which blocks it is measured."""
    for name, of, budget in (
        ("1 - Jain's fairness", "unfairness", 0.05),
        ("tasks with nothing", "starved", 0.0),
        ("commands per acquisition", "asked", 3.2),
    ):
        yield Row(title + name, ours, budget, floor, kind="alone", unit="", of=of)


def _against_peer(title: str, ours: Block, peer: Sequence[Member]) -> Iterator[Row]:
    floor = contention(peer) if peer else None
    yield against_peer(f"{title}cost", ours, 1.0, floor, of="cost")
    yield against_peer(f"{title}p99 wait", ours, 1 / 5, floor, of="wait")


def _on_postgres(title: str, ours: Block, peer: Sequence[Member]) -> Iterator[Row]:
    compared = [*_against_peer(title, ours, peer)]
    yield from compared
    yield from _fairness(title, ours, compared[0].floor)
