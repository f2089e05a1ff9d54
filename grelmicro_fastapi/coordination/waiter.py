"""One caller in a queue."""

import asyncio

from grelmicro_fastapi.coordination.identity import mint, owner
from grelmicro_fastapi.coordination.parcel import Parcel
from grelmicro_fastapi.coordination.wish import Grant, Wish


class Waiter:
    """One caller in the queue."""

    __slots__ = ("asked", "future", "owner", "parcel", "token", "wish")

    def __init__(self, wish: Wish, future: "asyncio.Future[Grant]") -> None:
        self.wish = wish
        self.future = future
        self.owner = owner()
        self.token = mint(wish.worker, self.owner)
        self.asked = 0.0
        self.parcel: Parcel | None = None

    @property
    def granted(self) -> Grant | None:
        """What it was given, whether or not anybody came for it."""
        future = self.future
        return None if not future.done() or future.cancelled() or future.exception() else future.result()
