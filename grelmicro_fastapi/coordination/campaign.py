"""One process's candidacy on one loop: it runs for leadership, leads, loses or resigns, and runs again."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial

from grelmicro_fastapi.coordination.crew import Crew
from grelmicro_fastapi.coordination.futures import settle, sleep, within
from grelmicro_fastapi.coordination.leadership import Leadership
from grelmicro_fastapi.coordination.wish import Wish
from grelmicro_fastapi.errors import CoordinationError, DrainingError, NotLeaderError

_log = logging.getLogger("grelmicro_fastapi.coordination")


class Campaign:
    """Runs in a task of its own from `start` to `stop`."""

    def __init__(self, crew: Crew, wish: Wish, pause: float) -> None:
        self.crew = crew
        self.name = wish.name
        self.users = 1
        self.leadership: Leadership | None = None
        self.bodies: set[asyncio.Task[object]] = set()
        """The work that needs this leadership: it must have ended before another process may lead."""
        self._wish = wish
        self._pause = pause
        self._watchers: list[asyncio.Future[None]] = []
        self._resigning = asyncio.Event()
        self._stopped = False
        self._failing = False
        self._task: asyncio.Task[None] | None = None

    @property
    def leading(self) -> Leadership | None:
        """The leadership, if it is valid at this moment."""
        return self.leadership if self.leadership and self.leadership.valid else None

    def start(self) -> None:
        """Stand as a candidate."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        self.crew.candidacies.append(self)

    def withdraw(self) -> None:
        """Stand no more, and resign when the bodies have ended."""
        self._stopped = True
        self._resigning.set()
        if self._task and not self.leadership:
            self._task.cancel()
        self._changed()

    async def stop(self) -> None:
        """Resign if we lead, when the bodies have ended; stand no more."""
        self.withdraw()
        if self in self.crew.candidacies:
            self.crew.candidacies.remove(self)
        if self._task:
            # Cancelling whoever stops us must not leave a leader behind that nobody looks after.
            await asyncio.wait([self._task])

    def resign(self) -> None:
        """End the term when the bodies have ended, and stand again after a pause."""
        self._resigning.set()

    async def elected(self) -> Leadership:
        """Wait until this process leads. Raises `NotLeaderError` if it stops standing."""
        while not (leading := self.leading) or self._resigning.is_set():
            if self._stopped:
                raise NotLeaderError(f"this process does not stand for {self._wish.name!r} any more")
            await self._change()
        return leading

    async def deposed(self) -> None:
        """Wait until this process does not lead."""
        while (leading := self.leading) and await self._first(leading.wait_lost(), self._change()):
            pass

    async def run(self, body: Callable[[Leadership], Awaitable[object]], leadership: Leadership) -> object:
        """Run a body that needs this leadership; it is cancelled when the term ends, however that comes.

        Raises what the body raises, and `NotLeaderError` if it was cancelled because the term ended.
        """
        leadership.check()
        task: asyncio.Task[object] = asyncio.ensure_future(body(leadership))
        self.bodies.add(task)
        task.add_done_callback(self.bodies.discard)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await self._wait_out({task}, leadership)
            if task.done() and not task.cancelled() and (error := task.exception()):
                _log.warning("the work of leader %r raised while it was cancelled", self._wish.name, exc_info=error)
            raise
        if task.cancelled() and self.leading is leadership and not self._resigning.is_set():
            raise asyncio.CancelledError
        if task.cancelled():
            raise NotLeaderError(f"term {leadership.term} of {self._wish.name!r} ended while its work was running")
        return task.result()

    async def _run(self) -> None:
        while not self._stopped:
            try:
                leadership = await self._stand()
            except DrainingError:
                self._stopped = True
                self._changed()
            except CoordinationError as error:
                # Once for each outage.
                level = logging.DEBUG if self._failing else logging.WARNING
                _log.log(level, "standing for %r failed, trying again: %s", self._wish.name, error)
                self._failing = True
            except Exception:
                _log.exception("standing for %r failed in a way that it should not, trying again", self._wish.name)
            else:
                self._failing = False
                await self._lead(leadership)
            if not self._stopped:
                # Whoever waits goes first; this only keeps a lone candidate from spinning.
                await sleep(self.crew.clock, self._pause * random.uniform(0.8, 1.2))

    async def _stand(self) -> Leadership:
        lease = await self.crew.take(self._wish, None, asyncio.current_task(), self)
        return Leadership(lease, lease, self.crew.keep(lease))

    async def _lead(self, leadership: Leadership) -> None:
        name = self._wish.name
        self._resigning.clear()
        if self._stopped:
            self._resigning.set()
        self.leadership = leadership
        _log.info("elected leader of %r, term %d", name, leadership.term, extra={"event": "leader.elected"})
        self._changed()
        try:
            await self._first(leadership.wait_lost(), self._resigning.wait())
        finally:
            # Its end must come within one lease now, even if a body does not heed its cancellation.
            leadership.lease.final = True
            for body in self.bodies:
                body.cancel()
            await self._wait_out(self.bodies, leadership)
            lost, self.leadership = leadership.lost, None
            _log.log(
                logging.ERROR if lost else logging.INFO,
                "%s the leadership of %r, term %d",
                "lost" if lost else "resigned from",
                name,
                leadership.term,
                extra={"event": "leader.lost" if lost else "leader.resigned"},
            )
            self._changed()
            with contextlib.suppress(CoordinationError):
                await leadership.leave(None)

    async def _wait_out(self, bodies: set[asyncio.Task[object]], leadership: Leadership) -> None:
        """Keep the leadership until its cancelled bodies have ended, or its lease has."""
        lease = leadership.lease
        while running := {body for body in bodies if not body.done()}:
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            for body in running:
                body.add_done_callback(partial(_ended, ended))
            left = max(lease.deadline, lease.confirmed + self._wish.lease) - self.crew.clock.now()
            if left <= 0:
                _log.critical("the work of leader %r goes on although its lease has ended", self._wish.name)
                return
            await within(self.crew.clock, min(left, 1.0), ended)

    async def _first(self, *awaitables: Awaitable[object]) -> bool:
        tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        return True

    async def _change(self) -> None:
        watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.append(watcher)
        await watcher

    def _changed(self) -> None:
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            settle(watcher, None)


def _ended(future: "asyncio.Future[None]", _: "asyncio.Task[object]") -> None:
    settle(future, None)
