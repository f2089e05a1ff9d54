"""How a store hears of wakes: on one channel of one server, or in every slot of a cluster where somebody waits."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from grelmicro_fastapi.coordination.store import Woken
from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers.redis_line import DeafError, Line
from grelmicro_fastapi.providers.redis_node import Node
from grelmicro_fastapi.providers.redis_site import Cluster
from grelmicro_fastapi.providers.redis_wire import wake

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_UNUSED = 60.0
_PATIENCE = 1.0
# With a plain ERR the command is unknown or switched off.
_HOPELESS = frozenset({"NOPERM", "ERR"})


class Ears(Protocol):
    """What listens for one store."""

    async def listen(self, woken: Woken) -> None:
        """Report wakes until cancelled. Raises `BackendError` if the server does not allow it."""

    async def cover(self, slot: int) -> None:
        """Hear that slot from now on."""


class OneChannel:
    """One channel of one server."""

    def __init__(self, node: Node, channel: str, prefix: str) -> None:
        self._node = node
        self._channel = channel
        self._prefix = prefix

    async def listen(self, woken: Woken) -> None:
        """Report wakes, and reconnect whenever the line is lost."""
        pause = _FIRST_PAUSE

        def told(kind: str, _: bytes, content: bytes) -> None:
            nonlocal pause
            if kind == "message":
                woken(wake(content, self._prefix))
            elif kind == "subscribe":
                # What was said before is lost.
                woken(None)
                pause = _FIRST_PAUSE

        while True:
            try:
                async with Line(self._node, told) as line:
                    line.say("SUBSCRIBE", self._channel)
                    await line.stay()
            except BackendError as error:
                if isinstance(error, DeafError) and error.code in _HOPELESS:
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def cover(self, slot: int) -> None:
        """There is only one channel, and it is heard."""


class _Slot:
    """A slot in which somebody of ours waits."""

    def __init__(self, channel: str, used: float) -> None:
        self.channel = channel
        self.used = used
        self.server = ""
        self.heard = asyncio.Event()
        self.deaf = False
        """It was waited for in vain, and nothing has been heard since."""
        self.lost = asyncio.Event()


class EverySlot:
    """A channel in each slot where somebody waits, on one line to each server."""

    def __init__(self, cluster: Cluster, channel: Callable[[int], str], prefix: str) -> None:
        self._cluster = cluster
        self._channel = channel
        self._prefix = prefix
        self._slots: dict[int, _Slot] = {}
        self._keepers: dict[int, asyncio.Task[None]] = {}
        self._lines: dict[str, asyncio.Future[Line]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused: asyncio.Future[None] | None = None
        self._deaf = False
        self._woken: Woken = lambda _: None

    async def listen(self, woken: Woken) -> None:
        """Report wakes. A slot that nobody used for a minute is heard no longer."""
        self._woken = woken
        refused = self._refused = asyncio.get_running_loop().create_future()
        woken(None)
        try:
            while not refused.done():
                await asyncio.wait([refused], timeout=_UNUSED / 4)
                self._forget(asyncio.get_running_loop().time() - _UNUSED)
            refused.result()
        finally:
            self._refused = None
            tasks = [*self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._slots.clear()
            self._keepers.clear()
            self._lines.clear()

    async def cover(self, slot: int) -> None:
        """Hear that slot before anybody waits there. Gives up after a second: then the waiters' own alarms must do."""
        if self._refused is None:
            return
        now = asyncio.get_running_loop().time()
        ear = self._slots.get(slot)
        if ear is None:
            ear = self._slots[slot] = _Slot(self._channel(slot), now)
            self._keepers[slot] = self._start(self._keep(slot, ear))
        ear.used = now
        if not ear.heard.is_set() and not ear.deaf and not self._deaf:
            try:
                async with asyncio.timeout(_PATIENCE):
                    await ear.heard.wait()
            except TimeoutError:
                # Once is enough: commands get through, and who is heard again wakes everybody.
                ear.deaf = self._deaf = True

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _forget(self, before: float) -> None:
        for number, ear in list(self._slots.items()):
            if ear.used < before:
                del self._slots[number]
                self._keepers.pop(number).cancel()

    async def _keep(self, number: int, slot: _Slot) -> None:
        """Keep one slot subscribed, wherever it lives."""
        pause = _FIRST_PAUSE
        while True:
            slot.lost.clear()
            try:
                slot.server = await self._cluster.owner(number)
                line = await self._line(slot.server)
                line.say("SSUBSCRIBE", slot.channel)
                try:
                    await slot.lost.wait()
                except asyncio.CancelledError:
                    with suppress(BackendError):
                        line.say("SUNSUBSCRIBE", slot.channel)
                    raise
            except BackendError:
                pass
            if slot.heard.is_set():
                pause = _FIRST_PAUSE
                slot.heard.clear()
            self._cluster.doubt()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _line(self, server: str) -> Line:
        """The line to a server, opened if there is none. Raises `BackendError` if it cannot be."""
        opened = self._lines.get(server)
        if opened is None:
            if self._refused is None:
                raise BackendError("nobody listens any more")
            opened = self._lines[server] = asyncio.get_running_loop().create_future()
            self._start(self._read(server, opened))
        return await asyncio.shield(opened)

    async def _read(self, server: str, opened: "asyncio.Future[Line]") -> None:
        """Hear one server until the line is lost."""
        try:
            async with Line(self._cluster.node(server), self._hear) as line:
                opened.set_result(line)
                await line.stay()
        except BackendError as error:
            if not opened.done():
                opened.set_exception(error)
                opened.exception()  # asked for here: there may be nobody else to
            if isinstance(error, DeafError) and error.code in _HOPELESS and self._refused and not self._refused.done():
                self._refused.set_exception(error)
        finally:
            opened.cancel()
            self._lines.pop(server, None)
            for slot in self._slots.values():
                if slot.server == server:
                    slot.lost.set()

    def _hear(self, kind: str, channel: bytes, content: bytes) -> None:
        if kind == "smessage":
            self._woken(wake(content, self._prefix))
            return
        for slot in self._slots.values():
            if slot.channel != channel.decode():
                continue
            if kind == "ssubscribe":
                slot.heard.set()
                slot.deaf = self._deaf = False
                # It may have been lost for a while.
                self._woken(None)
            elif kind == "sunsubscribe":
                # The slot moved to another server.
                slot.lost.set()
