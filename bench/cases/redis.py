"""Redis or Valkey, uncontended: one caller, many callers, and many readers of one name."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from bench import servers
from bench.members import Member, member, peers
from bench.row import NO_BUDGET, Block, Row, against_peer

TASKS, READERS = 50, 1_000


@asynccontextmanager
async def rows() -> AsyncGenerator[list[Row]]:
    with servers.redis() as server:
        async with (
            member("ours", server.url) as ours,
            member("redis_py", server.url) as redis_py,
            member("python_redis_lock", server.url) as python_redis_lock,
            peers(server.url) as peer,
        ):
            floor = pair(redis_py, "lock")
            many, crowd = (names(peer[0]), readers(peer[0])) if peer else (None, None)
            yield [
                Row("redis: lock / redis-py's Lock", pair(ours, "lock"), 1.0, floor),
                Row("redis: write / redis-py's Lock", pair(ours, "write"), 1.1, floor),
                Row("redis: read / redis-py's Lock", pair(ours, "read"), 1.05, floor),
                Row("redis: lock / python-redis-lock", pair(ours, "lock"), NO_BUDGET, pair(python_redis_lock, "lock")),
                Row(f"redis: {TASKS} names at a time / redis-py's Lock", names(ours), 1 / 3, names(redis_py)),
                against_peer(f"redis: {TASKS} names at a time", names(ours), 1 / 3, many),
                against_peer(f"redis: {READERS:,} readers of a name", readers(ours), 1 / 5, crowd),
            ]


def pair(member: Member, what: str) -> Block:
    return member.block("pair", what=what, name="catalog", batches=100, each=1)


def names(member: Member) -> Block:
    return member.block("crowd", what="write", names=[f"order:{number}" for number in range(TASKS)], each=4)


def readers(member: Member) -> Block:
    return member.block("crowd", what="read", names=["catalog"] * READERS, each=1)
