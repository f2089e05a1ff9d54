"""A network that misbehaves on purpose: a TCP proxy on loopback, told what to do to each direction."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

_TURNS = 10
"""Turns of the loop after which nothing of a proxy is left. It takes four or five."""

Direction = Literal["up", "down"]
"""`up` is from the client to the server: requests. `down` are replies."""


@dataclass
class Fault:
    """What happens to bytes of one direction from now on."""

    delay: float = 0.0
    """Seconds that they are held back. Their order is kept."""
    drop: bool = False
    """They vanish, and nobody is told: a black hole."""
    cut_after: int | None = None
    """The connection ends in the middle: after so many more bytes."""
    reset: bool = False
    """The next ones end the connection at once, with a reset."""


@dataclass
class Held:
    """One connection that is slow while the others run: from the first bytes that hold `marker`, nothing of it arrives.

    What is held is on its way: it arrives in the end, even if its sender has long hung up.
    """

    direction: Direction
    marker: bytes
    came: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when something is held."""
    _free: asyncio.Event = field(default_factory=asyncio.Event)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def arrive(self) -> None:
        """Let it go, and wait until it is there: until a server has answered it, or has hung up after reading it."""
        self._free.set()
        await self._arrived.wait()


@dataclass
class FaultProxy:
    """Listens on `port` and speaks to the server at `target`."""

    target: tuple[str, int]
    port: int = 0
    up: Fault = field(default_factory=Fault)
    down: Fault = field(default_factory=Fault)
    connections: int = 0
    refuses: bool = False
    apart: dict[int, Fault] = field(default_factory=dict)
    """What happens to both directions of one connection, by its number from 1 on, instead of `up` and `down`."""
    _held: list[Held] = field(default_factory=list)
    _streams: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    def heal(self) -> None:
        """From now on nothing is done to new bytes."""
        self.up, self.down, self.refuses = Fault(), Fault(), False
        self.apart.clear()

    def hold(self, direction: Direction, marker: str) -> Held:
        """Slow down the one connection that first says `marker` in that direction."""
        held = Held(direction, marker.encode())
        self._held.append(held)
        return held

    def cut(self) -> None:
        """End every connection that is open."""
        for stream in list(self._streams):
            stream.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.refuses:
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(*self.target)
        except OSError:
            return
        connection = _Connection(self, self.connections, (writer, server_writer))
        self._streams.update(connection.streams)
        try:
            await asyncio.gather(
                connection.pump("up", reader, server_writer), connection.pump("down", server_reader, writer)
            )
        finally:
            self._streams.difference_update(connection.streams)
            connection.abort()

    def fault(self, number: int, direction: Direction) -> Fault:
        """What happens to what that connection says now."""
        if number in self.apart:
            return self.apart[number]
        return self.up if direction == "up" else self.down

    def holds(self, direction: Direction, data: bytes) -> Held | None:
        """Is this what somebody waits for, to hold it?"""
        found = next((one for one in self._held if one.direction == direction and one.marker in data), None)
        if found:
            self._held.remove(found)
        return found


class _Connection:
    """Two pumps."""

    def __init__(self, proxy: FaultProxy, number: int, streams: tuple[asyncio.StreamWriter, ...]) -> None:
        self.streams = streams
        self._proxy = proxy
        self._number = number
        self._unanswered: list[Held] = []

    async def pump(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                if direction == "down":
                    self._answered()
                if held := self._proxy.holds(direction, data):
                    held.came.set()
                    await held._free.wait()
                    self._unanswered.append(held)
                fault = self._proxy.fault(self._number, direction)
                if fault.delay:
                    await asyncio.sleep(fault.delay)  # the network's own time
                if fault.drop:
                    continue
                if fault.cut_after is not None and len(data) >= fault.cut_after:
                    writer.write(data[: fault.cut_after])
                    await writer.drain()
                    # An orderly end: what was written arrives.
                    for stream in self.streams:
                        stream.close()
                    return
                if fault.cut_after is not None:
                    fault.cut_after -= len(data)
                if fault.reset:
                    self.abort()
                    return
                writer.write(data)
                await writer.drain()
                if direction == "down":
                    self._answered()
        if direction == "up":
            # A sender who hangs up calls nothing back: the server reads to the end, and hangs up then.
            with contextlib.suppress(OSError):
                writer.write_eof()
            return
        self.abort()

    def abort(self) -> None:
        for stream in self.streams:
            stream.transport.abort()
        self._answered()

    def _answered(self) -> None:
        for held in self._unanswered:
            held._arrived.set()
        self._unanswered.clear()


@asynccontextmanager
async def fault_proxy(port: int, host: str = "127.0.0.1") -> AsyncIterator[FaultProxy]:
    """A proxy before the server at that port, gone with all of its connections at the end."""
    proxy = FaultProxy((host, port))

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(proxy._accept(reader, writer))
        proxy._tasks.add(task)
        task.add_done_callback(proxy._tasks.discard)
        # However it ends, even before its first step, nobody is left on an open line.
        task.add_done_callback(lambda _: writer.transport.abort())

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        for listener in server.sockets:
            # Nobody new. Closing it here would lose the line of a caller who is just let in, on Python 3.11.
            asyncio.get_running_loop().remove_reader(listener.fileno())
        for _ in range(_TURNS):
            # A caller whom the loop has let in is told to `accepted` some turns later, and a line that is ended is
            # closed a turn later.
            await asyncio.sleep(0)
            for task in proxy._tasks:
                task.cancel()
        server.close()
