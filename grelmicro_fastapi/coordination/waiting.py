"""The waiting room: who waits here, and who is woken."""

import asyncio
from collections.abc import Callable

from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.coordination.courier import Courier
from grelmicro_fastapi.coordination.identity import seat
from grelmicro_fastapi.coordination.queues import Queue
from grelmicro_fastapi.coordination.state import Mode
from grelmicro_fastapi.coordination.store import Wake
from grelmicro_fastapi.coordination.waiter import Waiter
from grelmicro_fastapi.coordination.wish import Wish
from grelmicro_fastapi.errors import QueueFullError

CROWD = 10_000
"""How many may wait here for one name in one mode."""

_MODES = tuple(Mode)


class Waiting:
    """All queues of one loop."""

    def __init__(self, courier: Courier, clock: Clock, held_here: Callable[[str], bool]) -> None:
        self.courier = courier
        self.clock = clock
        self.held_here = held_here
        self.polls = False
        """True if nothing wakes us: then a queue asks again after its retry interval."""
        self.queues: dict[tuple[str, Mode], Queue] = {}

    def __contains__(self, place: tuple[str, Mode]) -> bool:
        return place in self.queues

    def join(self, wish: Wish) -> Waiter:
        """Queue, asking at once if nobody here knows better. Raises `QueueFullError`."""
        place = (wish.key, wish.mode)
        queue = self.queues.get(place)
        if not queue:
            queue = self.queues[place] = Queue(self, *place)
        elif len(queue.waiters) >= CROWD:
            raise QueueFullError(f"{CROWD} callers wait for {wish.name!r} already: try again later")
        waiter = Waiter(wish, asyncio.get_running_loop().create_future())
        queue.join(waiter)
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Give up. What may have been granted is undone."""
        if queue := self.queues.get((waiter.wish.key, waiter.wish.mode)):
            queue.leave(waiter)

    def expire(self, waiter: Waiter) -> None:
        """Its time is over: `LockTimeoutError` if somebody was in the way, `BackendError` if the store did not say."""
        if queue := self.queues.get((waiter.wish.key, waiter.wish.mode)):
            queue.expire(waiter)

    def wake(self, wake: Wake | None) -> None:
        """The store says who may have a chance now; None is everybody."""
        if wake is None:
            for queue in list(self.queues.values()):
                queue.wake(0, everybody=False)
            return
        for mode in _MODES:
            waiting = self.queues.get((wake.key, mode))
            if waiting and wake.seat == seat(self.courier.store.channel, mode):
                waiting.called(wake.after)

    def released(self, key: str) -> None:
        """A lease of ours was just given back: let the next one here ask in the same batch."""
        if not self.queues:
            return
        waiting = [queue for mode in _MODES if (queue := self.queues.get((key, mode)))]
        if waiting and not self.held_here(key):
            for queue in waiting:
                queue.released()

    def fail(self, error: Callable[[], Exception]) -> None:
        """Send everybody away, each with an error of its own."""
        for queue in list(self.queues.values()):
            for waiter in list(queue.waiters):
                queue.dismiss(waiter, error())

    def gone(self, place: tuple[str, Mode]) -> None:
        """Forget an empty queue."""
        del self.queues[place]
