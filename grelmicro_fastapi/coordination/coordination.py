"""What an app uses for its locks."""

from types import TracebackType
from typing import Protocol, Self

from grelmicro_fastapi.coordination.backend import Backend


class Opens(Protocol):
    """What a provider is to us: it has a backend, and can be opened and closed on each loop."""

    @property
    def backend(self) -> Backend:
        """Where states are kept."""
        ...

    async def open(self) -> None:
        """Connect on the running loop."""
        ...

    async def close(self) -> None:
        """Undo one `open`."""
        ...


class Coordination:
    """Where the locks of an app are kept: `Grelmicro(uses=[Coordination(RedisProvider())])`."""

    def __init__(self, source: Opens) -> None:
        self.source = source

    @property
    def backend(self) -> Backend:
        """Where states are kept."""
        return self.source.backend

    async def open(self) -> None:
        """Open the source on the running loop. Counted, so a source may be shared."""
        await self.source.open()

    async def close(self) -> None:
        """Undo one `open`."""
        await self.source.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
