"""Apps as FastAPI's documentation teaches them, with guards where they belong: the lint has nothing to say of them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from fastapi import (
    APIRouter,
    BackgroundTasks,
    Body,
    Cookie,
    Depends,
    FastAPI,
    File,
    Form,
    Header,
    HTTPException,
    Path,
    Query,
    Request,
    Response,
    Security,
    UploadFile,
    WebSocket,
    status,
)
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, StreamingResponse
from fastapi.routing import APIRoute
from fastapi.security import APIKeyHeader, HTTPBasic, HTTPBasicCredentials, OAuth2PasswordBearer, SecurityScopes
from pydantic import BaseModel, Field

from grelmicro_fastapi.app.grelmicro import Grelmicro
from grelmicro_fastapi.coordination.guards import LockHandle, ReadGuard, WriteGuard
from grelmicro_fastapi.coordination.leadership import Leadership
from grelmicro_fastapi.providers.memory import MemoryProvider
from grelmicro_fastapi.tasks.tasks import Tasks
from grelmicro_fastapi.web.dependencies import lock_guard, read_guard, write_guard
from grelmicro_fastapi.web.leader import leader_guard
from grelmicro_fastapi.web.lint import lint
from grelmicro_fastapi.web.methods import method_guard
from tests.web.serving import served

pytestmark = pytest.mark.anyio

Build = Callable[[], FastAPI]
APPS: list[Build] = []


def documented(build: Build) -> Build:
    APPS.append(build)
    return build


class Item(BaseModel):
    name: str = Field(min_length=1)
    price: float = 0.0


class ModelName(StrEnum):
    alexnet = "alexnet"
    resnet = "resnet"


ItemRead = Annotated[ReadGuard, Depends(read_guard("item:{item_id}"))]
ItemWrite = Annotated[WriteGuard, Depends(write_guard("item:{item_id}", wait=1.0))]


@documented
def path_and_query_parameters() -> FastAPI:
    app = FastAPI()

    @app.get("/items/{item_id}")
    async def read(item_id: int, guard: ItemRead, q: str | None = None) -> dict[str, Any]:
        return {"item": item_id, "q": q}

    @app.put("/items/{item_id}")
    async def update(item_id: Annotated[int, Path(ge=1)], item: Item, guard: ItemWrite) -> Item:
        return item

    @app.get("/models/{model_name}", dependencies=[Depends(read_guard("model:{model_name}"))])
    async def model(model_name: ModelName) -> ModelName:
        return model_name

    @app.get("/files/{file_path:path}", dependencies=[Depends(read_guard("file:{file_path}"))])
    async def file(file_path: str) -> str:
        return file_path

    @app.get("/search")
    async def search(
        guard: Annotated[ReadGuard, Depends(read_guard("page:{page}"))], page: Annotated[int, Query(ge=1)] = 1
    ) -> int:
        return page

    return app


@documented
def headers_cookies_forms_and_files() -> FastAPI:
    app = FastAPI()

    @app.get("/items/", dependencies=[Depends(lock_guard("tenant:{x_tenant}"))])
    async def items(x_tenant: Annotated[str, Header()], ads_id: Annotated[str | None, Cookie()] = None) -> str:
        return x_tenant

    @app.post("/login/", dependencies=[Depends(lock_guard("logins"))])
    async def login(username: Annotated[str, Form()], password: Annotated[str, Form()]) -> str:
        return username

    @app.post("/uploadfile/")
    async def upload(
        file: UploadFile, other: Annotated[bytes, File()], guard: Annotated[LockHandle, Depends(lock_guard("disk"))]
    ) -> int:
        return guard.fencing_token

    @app.patch("/items/{item_id}", status_code=status.HTTP_204_NO_CONTENT)
    async def patch(item_id: UUID, price: Annotated[float, Body(embed=True)], guard: ItemWrite) -> None: ...

    return app


class CommonParameters:
    def __init__(self, q: str | None = None, skip: int = 0, limit: int = 100) -> None:
        self.q, self.skip, self.limit = q, skip, limit


@documented
def classes_as_dependencies() -> FastAPI:
    app = FastAPI()

    @app.get("/items/", dependencies=[Depends(read_guard("page:{skip}"))])
    async def items(commons: Annotated[CommonParameters, Depends()]) -> int:
        return commons.limit

    return app


def query_extractor(q: str | None = None) -> str | None:
    return q


def query_or_cookie(
    q: Annotated[str | None, Depends(query_extractor)], last: Annotated[str | None, Cookie()] = None
) -> str | None:
    return q or last


def guarded_stock(guard: Annotated[WriteGuard, Depends(write_guard("stock"))]) -> WriteGuard:
    return guard


@documented
def sub_dependencies() -> FastAPI:
    app = FastAPI(dependencies=[Depends(query_extractor)])

    @app.get("/items/")
    async def items(q: Annotated[str | None, Depends(query_or_cookie)], guard: Annotated[Any, Depends(guarded_stock)]):  # type: ignore[no-untyped-def]  # as beginners write it
        return q

    return app


class Session:
    """Looks like the one of SQLModel."""

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *error: object) -> None: ...

    def commit(self) -> None: ...


def get_session() -> Iterator[Session]:
    with Session() as session:
        yield session


SessionDep = Annotated[Session, Depends(get_session)]


@documented
def sql_databases() -> FastAPI:
    app = FastAPI()

    @app.post("/heroes/")
    def create(hero: Item, session: SessionDep, guard: Annotated[WriteGuard, Depends(write_guard("heroes"))]) -> Item:
        session.commit()
        return hero

    @app.get("/heroes/", dependencies=[Depends(read_guard("heroes"))])
    def heroes(session: SessionDep, offset: int = 0, limit: Annotated[int, Query(le=100)] = 100) -> list[Item]:
        return []

    return app


async def committing() -> AsyncIterator[Session]:
    with Session() as session:
        yield session
        session.commit()


@documented
def dependencies_with_yield() -> FastAPI:
    app = FastAPI()

    @app.put("/late")
    async def late(
        guard: Annotated[WriteGuard, Depends(write_guard("rows", hold="response"))],
        session: Annotated[Session, Depends(committing)],
    ) -> None: ...

    @app.put("/early")
    async def early(
        guard: Annotated[WriteGuard, Depends(write_guard("rows"))],
        session: Annotated[Session, Depends(committing, scope="function")],
    ) -> None: ...

    @app.get("/read")
    async def read(
        session: Annotated[Session, Depends(committing)], guard: Annotated[ReadGuard, Depends(read_guard("rows"))]
    ) -> None: ...

    return app


oauth2 = OAuth2PasswordBearer(tokenUrl="token", scopes={"items": "Read items."})


async def current_user(scopes: SecurityScopes, token: Annotated[str, Depends(oauth2)]) -> str:
    return token


async def active_user(user: Annotated[str, Security(current_user, scopes=["items"])]) -> str:
    return user


User = Annotated[str, Depends(active_user)]


def cart_of(user: User) -> str:
    return f"cart:{user}"


@documented
def security() -> FastAPI:
    app = FastAPI()

    @app.get("/users/me/items/")
    async def mine(user: User, guard: Annotated[ReadGuard, Depends(read_guard("items"))]) -> str:
        return user

    @app.put("/cart")
    async def cart(guard: Annotated[WriteGuard, Depends(write_guard("cart", key=cart_of))], user: User) -> str:
        return user

    @app.delete("/items", dependencies=[Depends(write_guard("items", requires=[active_user]))])
    async def delete(user: User) -> None: ...

    @app.post("/basic", dependencies=[Depends(HTTPBasic()), Depends(lock_guard("basic"))])
    async def basic(credentials: Annotated[HTTPBasicCredentials, Depends(HTTPBasic())]) -> str:
        return credentials.username

    keyed = APIRouter(dependencies=[Security(APIKeyHeader(name="x-key"))])

    @keyed.post("/keyed", dependencies=[Depends(lock_guard("keyed"))])
    async def with_key() -> None: ...

    app.include_router(keyed)
    return app


async def token_header(x_token: Annotated[str, Header()]) -> None:
    if x_token != "fake-super-secret-token":
        raise HTTPException(400, "X-Token header invalid")


@documented
def bigger_applications() -> FastAPI:
    app = FastAPI(dependencies=[Depends(token_header)])
    items = APIRouter(
        prefix="/items", tags=["items"], dependencies=[Depends(method_guard("items"))], responses={404: {}}
    )
    admin = APIRouter()

    @items.get("/")
    async def read() -> list[str]:
        return []

    @items.put("/{item_id}", responses={403: {"description": "Operation forbidden"}})
    async def update(item_id: str) -> str:
        return item_id

    @admin.post("/")
    async def administer(leadership: Annotated[Leadership, Depends(leader_guard("tasks"))]) -> int:
        return leadership.term

    app.include_router(items)
    app.include_router(items, prefix="/v2")
    app.include_router(admin, prefix="/admin", dependencies=[Depends(lock_guard("admin"))])
    return app


@documented
def background_tasks() -> FastAPI:
    app = FastAPI()

    def write_log(message: str) -> None: ...

    @app.post("/send/{email}")
    async def send(
        email: str,
        background: BackgroundTasks,
        guard: Annotated[LockHandle, Depends(lock_guard("log", hold="response"))],
    ) -> None:
        background.add_task(write_log, email)

    return app


@documented
def streams_and_responses() -> FastAPI:
    app = FastAPI()

    def fake_video() -> Iterator[bytes]:
        yield b"some fake video bytes"

    @app.get("/video", dependencies=[Depends(read_guard("video", hold="response"))])
    async def video() -> StreamingResponse:
        return StreamingResponse(fake_video())

    @app.get("/html", response_class=HTMLResponse, dependencies=[Depends(read_guard("page", etag=True))])
    async def html() -> str:
        return "<html></html>"

    @app.get("/portal", response_model=None, dependencies=[Depends(read_guard("portal"))])
    async def portal(teleport: bool = False) -> Response | dict[str, str]:
        return RedirectResponse(url="/") if teleport else JSONResponse({"message": "here"})

    @app.put("/page")
    async def put(
        response: Response, guard: Annotated[WriteGuard, Depends(write_guard("page", etag=True, if_match="required"))]
    ) -> int:
        response.headers["x-cat-dog"] = "alone in the world"
        return guard.fencing_token

    return app


async def room_token(websocket: WebSocket, token: Annotated[str | None, Query()] = None) -> str | None:
    return token


@documented
def websockets() -> FastAPI:
    app = FastAPI()

    @app.websocket("/items/{item_id}/ws")
    async def talk(
        websocket: WebSocket, item_id: str, guard: ItemWrite, token: Annotated[str, Depends(room_token)]
    ) -> None: ...

    return app


@documented
def sub_applications() -> FastAPI:
    app, api = FastAPI(), FastAPI()

    @api.get("/sub", dependencies=[Depends(read_guard("sub"))])
    def sub() -> None: ...

    @app.get("/app", dependencies=[Depends(write_guard("sub"))])
    def main() -> None: ...

    app.mount("/subapi", api)
    return app


class TimedRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Any]:
        handle = super().get_route_handler()

        async def timed(request: Request) -> Response:
            response: Response = await handle(request)
            response.headers["x-time"] = "0"
            return response

        return timed


@lru_cache
def get_settings() -> dict[str, str]:
    return {}


@documented
def advanced() -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        yield

    app = FastAPI(lifespan=lifespan)
    router = APIRouter(route_class=TimedRoute)

    @router.post("/timed", dependencies=[Depends(lock_guard("timed"))])
    async def timed(numbers: Annotated[list[int], Body()], settings: Annotated[Any, Depends(get_settings)]) -> int:
        return sum(numbers)

    @app.post("/transfer/{source}/{target}", operation_id="transfer", deprecated=True)
    async def transfer(
        source: int,
        target: int,
        guards: Annotated[tuple[WriteGuard, ...], Depends(write_guard("account:{source}", "account:{target}"))],
        priority: Literal["low", "high"] = "low",
    ) -> None: ...

    @app.api_route("/both", methods=["PUT"], dependencies=[Depends(method_guard("both"))])
    async def both() -> None: ...

    app.include_router(router)
    return app


@pytest.mark.parametrize("build", APPS, ids=lambda build: build.__name__)
async def test_an_app_as_it_should_be_has_no_findings_and_starts_strict(build: Build) -> None:
    app = build()
    assert lint(app) == []
    Grelmicro(uses=[MemoryProvider(), Tasks()], strict=True).install(app)
    async with served(app) as client:
        schema = (await client.get("/openapi.json")).json()
        guarded = [one for path in schema["paths"].values() for one in path.values() if one.get("x-guards")]
    assert guarded or build is websockets
