"""A batch that left in the step that asked, and is on its way."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from grelmicro_fastapi.errors import BackendError

Got = list[Any] | Exception


class Trip:
    """Ends with `arrived`, once. What the server refused is first asked `again`, in a task."""

    def __init__(self, arrived: Callable[[Got], None], again: Callable[[list[Any]], Awaitable[list[Any]]]) -> None:
        self.give_up: Callable[[], None] | None = None
        self._arrived = arrived
        self._again = again
        self._task: asyncio.Task[None] | None = None

    def landed(self, got: Got) -> None:
        """What came of it."""
        if isinstance(got, list) and any(isinstance(answer, Exception) for answer in got):
            self._task = asyncio.get_running_loop().create_task(self._ask_again(got))
        else:
            self._arrived(got)

    def abandon(self) -> None:
        """Nobody waits for it any more."""
        if self._task:
            self._task.cancel()
        elif self.give_up:
            self.give_up()

    async def _ask_again(self, got: list[Any]) -> None:
        try:
            answers: Got = await self._again(got)
        except BackendError as error:
            answers = error
        self._arrived(answers)
