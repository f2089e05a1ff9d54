"""A network that misbehaves on purpose: a TCP proxy on loopback, told what to do to each direction."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

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
class FaultProxy:
    """Listens on `port` and speaks to the server at `target`."""

    target: tuple[str, int]
    port: int = 0
    up: Fault = field(default_factory=Fault)
    down: Fault = field(default_factory=Fault)
    connections: int = 0
    refuses: bool = False
    _streams: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    def heal(self) -> None:
        """From now on nothing is done to new bytes."""
        self.up, self.down, self.refuses = Fault(), Fault(), False

    def cut(self) -> None:
        """End every connection that is open."""
        for stream in list(self._streams):
            stream.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.refuses:
            writer.transport.abort()
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, server_writer)
        self._streams.update(pair)
        try:
            await asyncio.gather(
                self._pump("up", reader, server_writer, pair), self._pump("down", server_reader, writer, pair)
            )
        finally:
            for stream in pair:
                self._streams.discard(stream)
                stream.transport.abort()

    async def _pump(
        self,
        direction: Direction,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                fault: Fault = getattr(self, direction)
                if fault.delay:
                    await asyncio.sleep(fault.delay)  # the network's own time
                if fault.drop:
                    continue
                if fault.cut_after is not None and len(data) >= fault.cut_after:
                    writer.write(data[: fault.cut_after])
                    await writer.drain()
                    # An orderly end: what was written arrives.
                    for stream in pair:
                        stream.close()
                    return
                if fault.cut_after is not None:
                    fault.cut_after -= len(data)
                if fault.reset:
                    break
                writer.write(data)
                await writer.drain()
        for stream in pair:
            stream.transport.abort()


@asynccontextmanager
async def fault_proxy(port: int, host: str = "127.0.0.1") -> AsyncIterator[FaultProxy]:
    """A proxy before the server at that port, gone with all of its connections at the end."""
    proxy = FaultProxy((host, port))

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(proxy._accept(reader, writer))
        proxy._tasks.add(task)
        task.add_done_callback(proxy._tasks.discard)

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        tasks = list(proxy._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
