"""Ten thousand guards kept alive by one process on Redis: what that costs, and how late it is."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

from bench import servers
from bench.contests import fresh
from bench.members import member
from bench.row import Row

GUARDS, LEASE, SECONDS = 10_000, 60.0, 42.0
"""Long enough for each of them to be renewed twice."""


@asynccontextmanager
async def rows() -> AsyncGenerator[list[Row]]:
    with servers.redis() as server:
        kept = partial(_kept, server.url)
        title = f"redis: {GUARDS:,} guards kept alive, "
        yield [
            Row(f"{title}share of a core", kept, 5.0, kind="alone", unit="%", scale=100, of="share", at_most=2),
            Row(f"{title}p99 lateness", kept, LEASE / 10, kind="alone", unit="s", of="late", at_most=2),
        ]


async def _kept(url: str) -> dict[str, float]:
    async with member("ours", url) as one:
        told: dict[str, float] = await one.ask("keep", name=fresh("kept"), guards=GUARDS, lease=LEASE, seconds=SECONDS)
        # Nobody needs them any more, so it need not give them back.
        one.kill()
        return told
