"""A read-write lock: every reader at once, or one writer alone, in the whole fleet."""

from dataclasses import dataclass, replace
from typing import Unpack, final

from grelmicro_fastapi.coordination.backend import Source, check_source
from grelmicro_fastapi.coordination.guards import ReadGuard, WriteGuard
from grelmicro_fastapi.coordination.names import READWRITELOCK
from grelmicro_fastapi.coordination.options import LockOptions, wish
from grelmicro_fastapi.coordination.state import Mode
from grelmicro_fastapi.coordination.threads import ThreadView
from grelmicro_fastapi.coordination.view import View, look


@dataclass(frozen=True, slots=True)
class ReadWriteLockState:
    """What the store said of a lock at one moment. `waiting_writers` counts processes, each of which has one place."""

    generation: int
    writing: bool
    readers: int
    waiting_writers: int
    poisoned: bool


@final
class ReadView(View[ReadGuard]):
    """The shared mode of a read-write lock."""

    @property
    def from_thread(self) -> ThreadView[ReadGuard]:
        """The same for code that runs in a thread: `with lock.read.from_thread as reading`."""
        return ThreadView(self)


@final
class WriteView(View[WriteGuard]):
    """The exclusive mode of a read-write lock."""

    async def acquire(self, *, timeout: float | None = None, expect: int | None = None) -> WriteGuard:
        """Acquire as `View.acquire` does; with `expect`, only if that is still the generation.

        Otherwise `StaleGenerationError` says which it is now, and nothing was changed. A poisoned resource meets no
        expectation: nobody knows what it holds.
        """
        wish = self._wish if expect is None else replace(self._wish, expect=expect)
        return self._at_once(wish, timeout) or await self._take(wish, timeout)

    @property
    def from_thread(self) -> "ThreadWriteView":
        """The same for code that runs in a thread: `with lock.write.from_thread as writing`."""
        return ThreadWriteView(self)


@final
class ThreadWriteView(ThreadView[WriteGuard]):
    """The exclusive mode, for code that runs in a thread."""

    def downgrade(self, guard: WriteGuard) -> ReadGuard:
        """Make the writer a reader as `WriteGuard.downgrade` does."""
        return self._call(guard.downgrade)


class ReadWriteLock:
    """Every reader at once, or one writer alone, among all that share the store. Neither can starve the other.

        async with ReadWriteLock("catalog").write as writing:
            await catalog.replace(rows, fence=writing.fencing_token)

    `backend`, `env_load` and the options are those of `Lock`, the variables `GREL_READWRITELOCK_{NAME}_*` and
    `GREL_READWRITELOCK_*`. There is no upgrade from read to write: take the write lock from the start, and
    `WriteGuard.downgrade` where you only read on.
    """

    def __init__(
        self,
        name: str,
        *,
        backend: Source | None = None,
        env_load: bool | None = None,
        **options: Unpack[LockOptions],
    ) -> None:
        write = wish("READWRITELOCK", READWRITELOCK, name, Mode.WRITE, options, env_load)
        self._source = check_source(backend)
        self.read = ReadView(replace(write, mode=Mode.READ), backend, ReadGuard)
        self.write = WriteView(write, backend, WriteGuard)

    @property
    def name(self) -> str:
        """What is protected."""
        return self.write.name

    async def state(self) -> ReadWriteLockState:
        """Ask the store who is in. Raises `BackendError` if it does not say."""
        state = await look(self._source, READWRITELOCK + self.name)
        return ReadWriteLockState(
            generation=state.fence,
            writing=state.writer is not None,
            readers=len(state.readers),
            waiting_writers=sum(seat.mode is Mode.WRITE for seat in state.seats),
            poisoned=state.poisoned or (state.writer is not None and state.writer.poisoned),
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"
