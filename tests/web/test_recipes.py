"""Sessions that commit before the guard releases, as docs/fastapi.md recommends them."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlmodel import Field, Session, SQLModel, create_engine

from grelmicro_fastapi.app.grelmicro import Grelmicro
from grelmicro_fastapi.coordination.guards import WriteGuard
from grelmicro_fastapi.coordination.readwritelock import ReadWriteLock
from grelmicro_fastapi.providers.memory import MemoryProvider
from grelmicro_fastapi.web.dependencies import write_guard
from grelmicro_fastapi.web.lint import lint
from tests.web.serving import served

pytestmark = pytest.mark.anyio


class Recipe(SQLModel, table=True):
    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)


class Site:
    """A route that writes a row, and what it knew of its guard when the database committed."""

    def __init__(self) -> None:
        self.memory = MemoryProvider()
        self.app = FastAPI()
        Grelmicro(uses=[self.memory]).install(self.app)
        self.x = ReadWriteLock("x", backend=self.memory)
        self.guard: WriteGuard | None = None
        self.commits: list[bool] = []

    def committed(self, *_: Any) -> None:
        if self.guard is not None:
            self.commits.append(self.guard.valid)


@pytest.fixture(params=["sqlalchemy", "sqlmodel"])
async def opener(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Site, Any]]:
    site = Site()
    if request.param == "sqlalchemy":
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.sqlite")
        async with engine.begin() as connection:
            await connection.run_sync(SQLModel.metadata.create_all)
        event.listen(engine.sync_engine, "commit", site.committed)

        async def transaction() -> AsyncIterator[AsyncSession]:
            async with AsyncSession(engine) as session, session.begin():
                yield session

        yield site, transaction
        await engine.dispose()
        return
    blocking = create_engine(f"sqlite:///{tmp_path}/shop.sqlite", connect_args={"check_same_thread": False})
    SQLModel.metadata.create_all(blocking)
    event.listen(blocking, "commit", site.committed)

    def get_session() -> Iterator[Session]:
        with Session(blocking) as session:
            yield session
            session.commit()

    yield site, get_session
    blocking.dispose()


def route(site: Site, guard: Any, session: Any, *, guard_first: bool = True) -> None:
    async def write(session: Any, guard: WriteGuard) -> None:
        site.guard = guard
        said = text("INSERT INTO recipe (name) VALUES ('tea')")
        done = session.execute(said)
        if not isinstance(session, Session):
            await done

    if guard_first:

        @site.app.put("/")
        async def first(guard: Annotated[WriteGuard, guard], session: Annotated[Any, session]) -> None:
            await write(session, guard)

    else:

        @site.app.put("/")
        async def last(session: Annotated[Any, session], guard: Annotated[WriteGuard, guard]) -> None:
            await write(session, guard)


async def test_a_session_that_ends_with_the_handler_commits_under_the_guard_before_it(opener: Any) -> None:
    site, session = opener
    route(site, Depends(write_guard("x")), Depends(session, scope="function"))
    assert lint(site.app) == []
    async with served(site.app) as client:
        assert (await client.put("/")).status_code == 200
        assert site.commits == [True]
        assert not (await site.x.state()).writing


async def test_a_commit_that_fails_is_an_error_for_the_client_and_keeps_poison(opener: Any) -> None:
    site, session = opener
    route(site, Depends(write_guard("x")), Depends(session, scope="function"))

    async def spoil() -> None:
        await (await site.x.write.acquire()).release(poison=True)

    async with served(site.app, raises=False) as client:
        assert (await client.put("/")).status_code == 200
        await spoil()
        assert (await client.put("/")).status_code == 500  # that name is there already
        assert site.commits == [True]
        assert (await site.x.state()).poisoned


@pytest.mark.parametrize(("scope", "guard_first"), [("request", True), ("function", True), ("function", False)])
async def test_a_guard_that_stays_covers_sessions_that_end_before_it(
    opener: Any, scope: Any, guard_first: bool
) -> None:
    site, session = opener
    guard, opened = Depends(write_guard("x", hold="response")), Depends(session, scope=scope)
    route(site, guard, opened, guard_first=guard_first)
    assert lint(site.app) == []
    async with served(site.app) as client:
        assert (await client.put("/")).status_code == 200
        assert site.commits == [True]


@pytest.mark.parametrize(
    ("hold", "scope", "guard_first"),
    [
        ("handler", "request", True),
        ("handler", "request", False),
        ("handler", "function", False),
        ("response", "request", False),
    ],
)
async def test_what_the_lint_calls_too_late_is_too_late(opener: Any, hold: Any, scope: Any, guard_first: bool) -> None:
    site, session = opener
    guard, opened = Depends(write_guard("x", hold=hold)), Depends(session, scope=scope)
    route(site, guard, opened, guard_first=guard_first)
    assert [finding.code for finding in lint(site.app)] == ["commit-after-unlock"]
    async with served(site.app) as client:
        assert (await client.put("/")).status_code == 200
        assert site.commits == [False]
