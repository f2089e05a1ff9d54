"""A batch that left in the step that asked, and is on its way."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from grelmicro_fastapi.coordination.store import Ask, Flight, Landed
from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers.redis_pipe import Errand

Got = list[Any] | Exception

Leave = Callable[[Sequence[Ask], Landed, Errand | None], Flight | None]
"""Starts a trip at once, or behind an errand over the same connection; None if that cannot be."""


class Trip:
    """Ends with `arrived`, once. What the server refused is first asked `again`, in a task."""

    def __init__(
        self, arrived: Callable[[Got], None], again: Callable[[list[Any]], Awaitable[list[Any]]], leave: Leave
    ) -> None:
        self.errand: Errand | None = None
        self._arrived = arrived
        self._again = again
        self._leave = leave
        self._task: asyncio.Task[None] | None = None

    def landed(self, got: Got) -> None:
        """What came of it."""
        if isinstance(got, list) and any(isinstance(answer, Exception) for answer in got):
            self._task = asyncio.get_running_loop().create_task(self._ask_again(got))
        else:
            self._arrived(got)

    def follow(self, asks: Sequence[Ask], landed: Landed) -> Flight | None:
        """Send another behind it. None while this one is asked again: nobody knows then which arrives first."""
        return self._leave(asks, landed, self.errand)

    def abandon(self) -> None:
        """Nobody waits for it any more."""
        if self._task:
            self._task.cancel()
        elif self.errand:
            self.errand.abandon()

    async def _ask_again(self, got: list[Any]) -> None:
        try:
            answers: Got = await self._again(got)
        except BackendError as error:
            answers = error
        self._arrived(answers)
