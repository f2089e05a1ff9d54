"""Routes whose annotations are text that FastAPI cannot resolve: guards that are none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, FastAPI

from grelmicro_fastapi.coordination.guards import ReadGuard
from grelmicro_fastapi.web.dependencies import read_guard

if TYPE_CHECKING:
    from grelmicro_fastapi.coordination.guards import WriteGuard

Known = Annotated[ReadGuard, Depends(read_guard("x"))]


def add_routes(app: FastAPI) -> None:
    local = read_guard("x")
    Alias = Annotated[ReadGuard, Depends(read_guard("x"))]  # noqa: N806 - an alias is what is tested

    async def nested(guard: Alias) -> None: ...

    @app.get("/local", response_model=None)
    async def of_a_local(guard: Annotated[ReadGuard, Depends(local)]) -> None: ...

    @app.get("/hidden", response_model=None)
    async def of_a_hidden_type(guard: Annotated[WriteGuard, Depends(read_guard("x"))]) -> None: ...

    @app.get("/alias", response_model=None)
    async def of_an_alias(guard: Alias) -> None: ...

    @app.get("/nested", response_model=None, dependencies=[Depends(nested)])
    async def of_what_is_needed() -> None: ...

    @app.get("/known", response_model=None)
    async def known(guard: Known, page: int, query: str | None = None) -> None: ...

    @app.get("/spelled", response_model=None)
    async def spelled(guard: Annotated[ReadGuard, Depends(read_guard("x"))]) -> None: ...

    @app.get("/default", response_model=None)
    async def by_default(guard: WriteGuard = Depends(read_guard("x"))) -> None: ...  # noqa: B008 - this form is what is tested
