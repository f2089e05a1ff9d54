"""From the release in one process until the waiter in another one runs."""

import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from bench import servers
from bench.contests import hand_over
from bench.members import fleet
from bench.row import NO_BUDGET, Row


@asynccontextmanager
async def rows() -> AsyncGenerator[list[Row]]:
    with tempfile.TemporaryDirectory() as folder, servers.redis() as server, servers.postgres() as postgres:
        async with (
            fleet("ours", f"sqlite:///{Path(folder, 'locks.sqlite')}", 2) as on_sqlite,
            fleet("ours", server.url, 2) as on_redis,
            fleet("token", server.url, 2) as token,
            fleet("published", server.url, 2) as published,
            fleet("python_redis_lock", server.url, 2) as python_redis_lock,
            fleet("ours", postgres, 2) as on_postgres,
            fleet("notified", postgres, 2) as notified,
        ):
            on_disk = hand_over(on_sqlite, hold=(0.02, 0.06))
            yield [
                Row("sqlite: hand-over", on_disk, 15.0, kind="alone", unit="ms", scale=1000),
                Row("redis: hand-over / BLPOP token", hand_over(on_redis), 1.3, hand_over(token)),
                Row("redis: hand-over / SET NX and PUBLISH", hand_over(on_redis), 1.3, hand_over(published)),
                Row(
                    "redis: hand-over / python-redis-lock", hand_over(on_redis), NO_BUDGET, hand_over(python_redis_lock)
                ),
                Row("postgres: hand-over / update and NOTIFY", hand_over(on_postgres), 1.3, hand_over(notified)),
            ]
