"""Which store answers for what, and whether it reaches far enough."""

import logging
from pathlib import Path

import pytest

from grelmicro_fastapi import Grelmicro
from grelmicro_fastapi.coordination import Coordination, LeaderElection, Lock
from grelmicro_fastapi.coordination.coordination import Reach
from grelmicro_fastapi.errors import BackendScopeError, NotRunningError, SettingsValidationError
from grelmicro_fastapi.providers.base import Provider
from grelmicro_fastapi.providers.memory import MemoryProvider
from grelmicro_fastapi.providers.sqlite import SqliteProvider
from grelmicro_fastapi.testing.clock import ManualClock

pytestmark = pytest.mark.anyio

Environment = pytest.MonkeyPatch
LOGGER = "grelmicro_fastapi.coordination"


@pytest.mark.parametrize("where", ["production", "staging", "Production"])
async def test_production_refuses_a_store_of_one_process_and_opens_nothing(
    where: str, monkeypatch: Environment
) -> None:
    monkeypatch.setenv("GREL_ENVIRONMENT", where)
    memory = MemoryProvider()
    with pytest.raises(BackendScopeError, match=r"reaches one process only.*requires='process'"):
        await Grelmicro(uses=[memory]).open()
    with pytest.raises(NotRunningError):
        memory.backend.crew()


@pytest.mark.parametrize(("requires", "enough"), [("process", True), ("host", True), ("cluster", False)])
async def test_production_takes_a_store_of_one_host_only_where_that_is_said_to_do(
    requires: Reach, enough: bool, monkeypatch: Environment, tmp_path: Path
) -> None:
    monkeypatch.setenv("GREL_ENVIRONMENT", "production")
    coordination = Coordination(SqliteProvider(tmp_path / "locks.db"), requires=requires)
    if enough:
        async with coordination, Lock("x", backend=coordination):
            return
    with pytest.raises(BackendScopeError, match="reaches one host only"):
        await coordination.open()


@pytest.mark.parametrize("where", ["development", "test"])
async def test_development_is_quiet(where: str, monkeypatch: Environment, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("GREL_ENVIRONMENT", where)
    async with Coordination(MemoryProvider()):
        pass
    assert not caplog.records


async def test_an_unset_environment_warns_once_of_a_short_reach(
    monkeypatch: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("GREL_ENVIRONMENT", raising=False)
    coordination = Coordination(MemoryProvider())
    with caplog.at_level(logging.WARNING, LOGGER):
        for _ in range(3):
            async with coordination:
                pass
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "GREL_ENVIRONMENT" in caplog.text


async def test_an_unset_environment_is_quiet_where_the_reach_is_said_to_do(
    monkeypatch: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("GREL_ENVIRONMENT", raising=False)
    async with Coordination(MemoryProvider(), requires="process"):
        pass
    assert not caplog.records


async def test_a_word_that_is_no_environment_is_refused_without_being_repeated(monkeypatch: Environment) -> None:
    monkeypatch.setenv("GREL_ENVIRONMENT", "prod-secret")
    with pytest.raises(SettingsValidationError, match="GREL_ENVIRONMENT") as refused:
        await Coordination(MemoryProvider()).open()
    assert "prod-secret" not in str(refused.value)


async def test_the_store_of_elections_must_reach_as_far(monkeypatch: Environment) -> None:
    class Far(MemoryProvider):
        scope = SqliteProvider.scope

    monkeypatch.setenv("GREL_ENVIRONMENT", "production")
    with pytest.raises(BackendScopeError, match="one process"):
        await Coordination(Far(), election=MemoryProvider(), requires="host").open()


async def test_leaders_may_be_elected_on_another_store_than_locks_are_kept_on() -> None:
    clock = ManualClock()
    locks, leaders = MemoryProvider(clock=clock), MemoryProvider(clock=clock)

    async def kept(provider: Provider) -> list[str]:
        return sorted([key async for key in provider.backend.crew().store.keys("")])

    coordination = Coordination(locks, election=leaders)
    async with Grelmicro(uses=[coordination]), Lock("x"), LeaderElection("main") as ambient:
        await clock.settle()
        assert ambient.is_leader()
        assert await kept(locks) == ["lock:x"]
        assert await kept(leaders) == ["leader:main"]
        async with LeaderElection("other", backend=coordination):
            await clock.settle()
            assert await kept(leaders) == ["leader:main", "leader:other"]
        assert await ambient.record()
        async with LeaderElection("named", backend=locks):
            await clock.settle()
            assert await kept(locks) == ["leader:named", "lock:x"]
    with pytest.raises(NotRunningError):
        leaders.backend.crew()


async def test_a_store_of_elections_that_does_not_open_leaves_nothing_open() -> None:
    class Broken(MemoryProvider):
        async def open(self) -> None:
            raise SettingsValidationError("no")

    locks = MemoryProvider()
    with pytest.raises(SettingsValidationError):
        await Coordination(locks, election=Broken()).open()
    with pytest.raises(NotRunningError):
        locks.backend.crew()
