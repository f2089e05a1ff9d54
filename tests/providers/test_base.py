"""What all providers share: opened and closed by count, a set of connections for each loop."""

import asyncio
import gc
import logging
import weakref
from pathlib import Path

import pytest

from grelmicro_fastapi.coordination.lock import Lock
from grelmicro_fastapi.coordination.store import Scope
from grelmicro_fastapi.errors import BackendError, NotRunningError, SettingsValidationError
from grelmicro_fastapi.providers import Provider, provider_from_url
from grelmicro_fastapi.providers.memory import MemoryProvider, MemoryStore
from grelmicro_fastapi.providers.sqlite import SqliteProvider

pytestmark = pytest.mark.anyio


class _CountedStore(MemoryStore):
    """A store in memory that is slow to open, may be down, and counts."""

    def __init__(self, owner: "_Counted") -> None:
        super().__init__(owner._states)
        self._owner = owner

    async def open(self) -> None:
        self._owner.opens += 1
        await asyncio.sleep(0)
        if self._owner.trouble:
            raise self._owner.trouble

    async def close(self) -> None:
        self._owner.closes += 1


class _Counted(MemoryProvider):
    def __init__(self) -> None:
        super().__init__()
        self.opens = self.closes = 0
        self.trouble: Exception | None = None

    def _store(self) -> _CountedStore:
        return _CountedStore(self)


async def test_the_first_open_connects_and_the_last_close_gives_back() -> None:
    provider = _Counted()
    await asyncio.gather(*(provider.open() for _ in range(3)))
    assert (provider.opens, provider.closes) == (1, 0)
    await provider.close()
    await provider.close()
    assert provider.closes == 0
    await provider.check()
    await provider.close()
    assert provider.closes == 1
    await provider.close()
    assert provider.closes == 1


async def test_nobody_returns_from_open_before_it_is_open() -> None:
    provider = _Counted()
    first = asyncio.create_task(provider.open())
    await asyncio.sleep(0)
    await provider.open()
    provider.backend.crew()
    await first
    await provider.close()
    await provider.close()


async def test_it_may_be_opened_again() -> None:
    provider = _Counted()
    for count in (1, 2):
        async with provider as entered:
            assert entered is provider
            async with Lock("stock", backend=provider):
                pass
        assert (provider.opens, provider.closes) == (count, count)


async def test_opened_again_while_it_closes_it_has_new_connections() -> None:
    provider = _Counted()
    await provider.open()
    closing = asyncio.create_task(provider.close())
    await asyncio.sleep(0)
    await provider.open()
    await closing
    await provider.check()
    async with Lock("stock", backend=provider):
        pass
    await provider.close()
    assert (provider.opens, provider.closes) == (2, 2)


async def test_a_store_that_is_down_is_logged_once_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    provider = _Counted()
    provider.trouble = BackendError("connection refused")
    async with provider, provider:
        provider.backend.crew()
    assert [(record.name, record.levelno) for record in caplog.records] == [
        ("grelmicro_fastapi.providers", logging.WARNING)
    ]
    assert "memory cannot be reached" in caplog.text
    assert provider.closes == 1


async def test_a_wrong_setting_is_an_error_and_leaves_nothing_open() -> None:
    provider = _Counted()
    provider.trouble = SettingsValidationError("timeout= must be positive")
    results = await asyncio.gather(provider.open(), provider.open(), return_exceptions=True)
    assert [type(result) for result in results] == [SettingsValidationError] * 2
    assert provider.closes == 1
    with pytest.raises(NotRunningError):
        provider.backend.crew()
    provider.trouble = None
    async with provider:
        await provider.check()


async def test_a_cancelled_open_leaves_nothing_open() -> None:
    provider = _Counted()
    opening = asyncio.create_task(provider.open())
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    assert provider.closes == 1
    with pytest.raises(NotRunningError):
        await provider.check()


@pytest.fixture
def nonsense(tmp_path: Path) -> Path:
    file = tmp_path / "locks.db"
    file.write_bytes(b"this is not a database" * 100)
    return file


async def test_check_says_what_is_wrong(nonsense: Path) -> None:
    provider = SqliteProvider(nonsense)
    with pytest.raises(NotRunningError, match="not open"):
        await provider.check()
    async with provider:
        with pytest.raises(BackendError, match="not a database"):
            await provider.check()
        await asyncio.to_thread(nonsense.unlink)
        await provider.check()


async def test_each_loop_has_connections_of_its_own() -> None:
    provider = _Counted()

    async def elsewhere() -> object:
        async with provider:
            return provider.backend.crew()

    async with provider:
        assert await asyncio.to_thread(asyncio.run, elsewhere()) is not provider.backend.crew()
        assert (provider.opens, provider.closes) == (2, 1)


async def test_a_loop_that_ended_without_closing_is_forgotten() -> None:
    provider = _Counted()

    def run() -> "weakref.ref[asyncio.AbstractEventLoop]":
        loop = asyncio.new_event_loop()
        loop.run_until_complete(provider.open())
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.001))
        loop.close()
        return weakref.ref(loop)

    left = await asyncio.to_thread(run)
    async with provider:
        gc.collect()
        assert left() is None


async def test_every_noun_is_given_the_same_backend() -> None:
    provider = MemoryProvider()
    assert provider.lock() is provider.readwritelock() is provider.tasklock() is provider.leaderelection()
    assert provider.lock() is provider.backend


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("memory://", MemoryProvider),
        ("sqlite:///locks.db", SqliteProvider),
        ("sqlite+aiosqlite:////var/lib/locks.db", SqliteProvider),
    ],
)
def test_a_url_picks_its_provider_by_scheme(url: str, kind: type[Provider]) -> None:
    provider = provider_from_url(url)
    assert type(provider) is kind
    assert provider.scope in Scope


@pytest.mark.parametrize("url", ["mysql://user:secret@host/db", "secret", "", "sqlit:///secret"])
def test_a_url_that_no_provider_serves_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(SettingsValidationError, match="scheme") as refused:
        provider_from_url(url)
    assert "secret" not in str(refused.value)
