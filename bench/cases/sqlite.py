"""A file that processes share, durable to the last commit: against bare transactions on the same kind of file."""

import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.members import member, peers
from bench.row import Row

TASKS = 50

RECORDED = 2.33
"""What grelmicro 0.41.1 took for a pair, in terms of two bare transactions, on Python 3.13.

Its tasks share one connection and take turns, so fifty at a time cost as much each.
"""


@asynccontextmanager
async def rows() -> AsyncGenerator[list[Row]]:
    with tempfile.TemporaryDirectory() as folder:
        async with (
            member("ours", f"sqlite:///{Path(folder, 'locks.sqlite')}") as ours,
            member("transactions", f"sqlite:///{Path(folder, 'bare.sqlite')}") as bare,
            peers(f"sqlite:///{Path(folder, 'peer.sqlite')}") as peer,
        ):
            alone = {"what": "write", "name": "catalog", "batches": 40, "each": 1}
            crowd = {"what": "write", "names": [f"order:{number}" for number in range(TASKS)], "each": 4}
            pair, together = ours.block("pair", **alone), ours.block("crowd", **crowd)
            yield [
                Row("sqlite: write / two bare transactions", pair, 1.0, bare.block("pair", **alone)),
                Row(f"sqlite: {TASKS} at a time / grelmicro", together, 1 / 5, peer[0].block("crowd", **crowd))
                if peer
                else Row(
                    f"sqlite: {TASKS} at a time / two bare transactions",
                    together,
                    RECORDED / 5,
                    bare.block("pair", **alone),
                    note="budget: a fifth of grelmicro's, recorded",
                ),
            ]
