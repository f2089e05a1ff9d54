"""Acquire and release, uncontended, in one process."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from bench.members import Member, member, peers
from bench.row import Block, Row

RECORDED = {"lock": 24.4, "read": 29.1, "write": 32.6}
"""What grelmicro 0.41.1 took for a pair, in terms of asyncio.Lock, on Python 3.13: the budget where it is not here."""


@asynccontextmanager
async def rows() -> AsyncGenerator[list[Row]]:
    async with (
        member("ours", "memory://") as ours,
        peers("memory://") as peer,
        member("in_process", "asyncio") as bare,
        member("in_process", "aiorwlock") as rival,
    ):
        if peer:
            row = [
                Row(f"memory: {what} / grelmicro", _pair(ours, what), 1.0, _pair(peer[0], what)) for what in RECORDED
            ]
        else:
            note = "budget: grelmicro, recorded"
            row = [
                Row(f"memory: {what} / asyncio.Lock", _pair(ours, what), budget, _pair(bare, what), note=note)
                for what, budget in RECORDED.items()
            ]
        yield [*row, Row("memory: write / aiorwlock writer", _pair(ours, "write"), 1.5, _pair(rival, "write"))]


def _pair(member: Member, what: str) -> Block:
    return member.block("pair", what=what, name="catalog", batches=40, each=50)
