"""Conditional requests: the generation as an entity tag."""

import asyncio
import random
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.requests import Request

from grelmicro_fastapi.app.grelmicro import Grelmicro
from grelmicro_fastapi.coordination.guards import ReadGuard, WriteGuard
from grelmicro_fastapi.coordination.readwritelock import ReadWriteLock
from grelmicro_fastapi.testing.clock import ManualClock
from grelmicro_fastapi.web.conditional import Tags, parse
from grelmicro_fastapi.web.dependencies import lock_guard, read_guard, write_guard
from tests.web.serving import FlakyProvider, elsewhere, held_elsewhere, problem_of, served

pytestmark = pytest.mark.anyio


class Site:
    def __init__(self, install: bool) -> None:
        self.clock = ManualClock()
        self.memory = FlakyProvider(clock=self.clock)
        self.micro = Grelmicro(uses=[self.memory])
        self.app = FastAPI(lifespan=self.micro.lifespan)
        if install:
            self.micro.install(self.app)
        self.x = ReadWriteLock("x", backend=self.memory)
        self.value = "nothing"
        self.runs = 0

        @self.app.get("/x")
        async def read(guard: Annotated[ReadGuard, Depends(read_guard("x", etag=True))]) -> str:
            self.runs += 1
            return self.value

        @self.app.put("/x")
        async def write(
            value: str, guard: Annotated[WriteGuard, Depends(write_guard("x", etag=True, if_match="optional"))]
        ) -> str:
            self.value = value
            return value

        @self.app.patch("/x")
        async def change(guard: Annotated[WriteGuard, Depends(write_guard("x", wait=0, if_match="required"))]) -> None:
            self.value = "changed"

    async def poison(self) -> None:
        async def spoil() -> None:
            await (await self.x.write.acquire()).release(poison=True)

        await elsewhere(spoil())

    async def generation(self) -> int:
        return (await self.x.state()).generation


@pytest.fixture(params=["installed", "nothing installed"])
def site(request: pytest.FixtureRequest) -> Site:
    return Site(request.param == "installed")


async def test_the_generation_is_the_tag_of_what_is_read(site: Site) -> None:
    async with served(site.app) as client:
        assert (await client.get("/x")).headers["etag"] == '"g0"'
        assert (await client.put("/x?value=a")).headers["etag"] == '"g1"'
        assert (await client.get("/x")).headers["etag"] == '"g1"'


@pytest.mark.parametrize("known", ['"g1"', 'W/"g1"', '"other", "g1"', "*", '"other",W/"g1" , "x"'])
async def test_what_the_client_has_is_not_sent_again(site: Site, known: str) -> None:
    async with served(site.app) as client:
        await client.put("/x?value=a")
        answer = await client.get("/x", headers={"if-none-match": known})
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["etag"] == '"g1"'
        assert site.runs == 0
        assert (await site.x.state()).readers == 0


@pytest.mark.parametrize("known", ['"g0"', '"g2", "g3"', "g1", '"g1', "", '"G1"', '"g01"'])
async def test_what_the_client_does_not_have_is_sent(site: Site, known: str) -> None:
    async with served(site.app) as client:
        await client.put("/x?value=a")
        answer = await client.get("/x", headers={"if-none-match": known})
        assert (answer.status_code, answer.json()) == (200, "a")


@pytest.mark.parametrize("known", ['"g1"', '"g7", "g1"', "*", '"g0","g1"', '"other", "g1"'])
async def test_a_write_that_knows_the_generation_is_made(site: Site, known: str) -> None:
    async with served(site.app) as client:
        await client.put("/x?value=a")
        answer = await client.put("/x?value=b", headers={"if-match": known})
        assert answer.status_code == 200
        assert site.value == "b"
        assert await site.generation() == 2


@pytest.mark.parametrize("known", ['"g0"', 'W/"g1"', '"g01"', "g1", '"g9", "g8"', "", '"other"'])
async def test_a_write_that_does_not_know_the_generation_is_412_and_changes_nothing(site: Site, known: str) -> None:
    async with served(site.app) as client:
        await client.put("/x?value=a")
        answer = await client.put("/x?value=b", headers={"if-match": known})
        assert answer.status_code == 412
        assert problem_of(answer) == "generation-mismatch"
        assert answer.headers["etag"] == '"g1"'
        assert "retry-after" not in answer.headers
        assert site.value == "a"
        assert await site.generation() == 1


async def test_several_headers_are_one_list(site: Site) -> None:
    async with served(site.app) as client:
        answer = await client.put("/x?value=b", headers=[("if-match", '"g5"'), ("if-match", '"g0"')])
        assert answer.status_code == 200


async def test_a_write_that_must_say_what_it_knows_is_428_without(site: Site) -> None:
    async with served(site.app) as client:
        answer = await client.patch("/x")
        assert answer.status_code == 428
        assert problem_of(answer) == "precondition-required"
        assert await site.generation() == 0
        assert (await client.patch("/x", headers={"if-match": '"g0"'})).status_code == 200


async def test_while_poisoned_there_is_no_tag_and_nothing_matches(site: Site) -> None:
    async with served(site.app) as client:
        await site.poison()
        answer = await client.get("/x", headers={"if-none-match": '"g1", *'})
        assert answer.status_code == 200
        assert "etag" not in answer.headers
        assert (await client.get("/x", headers={"if-none-match": "*"})).status_code == 200
        for known in ('"g1"', '"g0"', "*"):
            refused = await client.put("/x?value=b", headers={"if-match": known})
            assert refused.status_code == 412
            assert "etag" not in refused.headers
        assert await site.generation() == 1
        # A write without a condition repairs it.
        repaired = await client.put("/x?value=whole")
        assert repaired.status_code == 200
        assert "etag" not in repaired.headers
        assert (await client.get("/x")).headers["etag"] == '"g2"'


async def test_a_mismatch_is_answered_while_somebody_writes(site: Site) -> None:
    async with served(site.app) as client, held_elsewhere(site.x.write):
        assert (await client.patch("/x", headers={"if-match": '"g0"'})).status_code == 412
        assert (await client.patch("/x", headers={"if-match": "*"})).status_code == 409


async def test_a_response_of_the_handler_carries_the_tag_once_installed() -> None:
    site = Site(install=True)

    @site.app.get("/own")
    async def own(guard: Annotated[ReadGuard, Depends(read_guard("x", etag=True))]) -> Response:
        return PlainTextResponse("own")

    @site.app.get("/chosen")
    async def chosen(guard: Annotated[ReadGuard, Depends(read_guard("x", etag=True))]) -> Response:
        return PlainTextResponse("chosen", headers={"ETag": '"mine"'})

    @site.app.get("/missing")
    async def missing(guard: Annotated[ReadGuard, Depends(read_guard("x", etag=True))]) -> Response:
        return PlainTextResponse("missing", 404)

    @site.app.get("/raised")
    async def raised(guard: Annotated[ReadGuard, Depends(read_guard("x", etag=True))]) -> None:
        raise HTTPException(404)

    async with served(site.app) as client:
        assert (await client.get("/own")).headers.get_list("etag") == ['"g0"']
        assert (await client.get("/x")).headers.get_list("etag") == ['"g0"']
        assert (await client.get("/chosen")).headers.get_list("etag") == ['"mine"']
        assert "etag" not in (await client.get("/missing")).headers
        assert "etag" not in (await client.get("/raised")).headers


async def test_304_has_no_body_whatever_handler_the_user_has() -> None:
    site = Site(install=True)

    @site.app.exception_handler(HTTPException)
    async def mine(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"mine": True}, error.status_code)

    async with served(site.app) as client:
        answer = await client.get("/x", headers={"if-none-match": '"g0"'})
        assert (answer.status_code, answer.content) == (304, b"")


async def test_several_names_have_one_tag(site: Site) -> None:
    @site.app.get("/both")
    async def both(guards: Annotated[tuple[ReadGuard, ...], Depends(read_guard("x", "a", etag=True))]) -> None: ...

    async with served(site.app) as client:
        await client.put("/x?value=a")
        assert (await client.get("/both")).headers["etag"] == '"g1.g0"'


async def test_of_many_clients_that_read_and_then_write_each_success_builds_on_what_it_read(site: Site) -> None:
    site.value = "0"

    @site.app.put("/count")
    async def count(value: str, guard: Annotated[WriteGuard, Depends(write_guard("x", if_match="required"))]) -> None:
        before = site.value
        await asyncio.sleep(0)
        assert int(value) == int(before) + 1
        site.value = value

    order = random.Random(7)

    async with served(site.app) as client:

        async def visit() -> int:
            for _ in range(order.randrange(3)):
                await asyncio.sleep(0)
            read = await client.get("/x")
            answer = await client.put(
                f"/count?value={int(read.json()) + 1}", headers={"if-match": read.headers["etag"]}
            )
            return answer.status_code

        statuses = [status for _ in range(4) for status in await asyncio.gather(*[visit() for _ in range(50)])]
        won = statuses.count(200)
        assert {*statuses} == {200, 412}
        assert int(site.value) == won == await site.generation()


@pytest.mark.parametrize(
    ("header", "tags"),
    [
        ("*", Tags(True, (), ())),
        ('"a"', Tags(False, ("a",), ())),
        ('W/"a", "b" ,, "c,d"', Tags(False, ("b", "c,d"), ("a",))),
        ('"a" "b"', Tags(False, (), ())),
        ('w/"a"', Tags(False, (), ())),
        ('"a", *', Tags(False, (), ())),
        (",", Tags(False, (), ())),
    ],
)
def test_a_list_of_tags_is_read_as_rfc_9110_writes_it(header: str, tags: Tags) -> None:
    assert parse(header) == tags


@pytest.mark.parametrize("options", [{"if_match": "optional"}, {"key": lambda: "x"}])
def test_conditions_and_keys_are_for_one_name(options: Any) -> None:
    with pytest.raises(ValueError, match="one name"):
        write_guard("a", "b", **options)


async def test_a_condition_that_comes_after_the_lock_is_refused_and_never_overlooked() -> None:
    site = Site(install=True)
    router = APIRouter(dependencies=[Depends(write_guard("page"))])

    @router.put("/page")
    async def put(guard: Annotated[WriteGuard, Depends(write_guard("page", if_match="required"))]) -> int:
        return guard.fencing_token

    site.app.include_router(router)
    async with served(site.app) as client:
        for headers in ({}, {"If-Match": '"g999"'}):
            answer = await client.put("/page", headers=headers)
            assert problem_of(answer) == "guard-misuse"


@pytest.mark.parametrize("guard", [read_guard, lock_guard])
def test_only_a_write_can_be_conditional(guard: Any) -> None:
    with pytest.raises(ValueError, match="if_match"):
        guard("x", if_match="required")


def test_a_plain_lock_has_no_entity_tag() -> None:
    with pytest.raises(ValueError, match="etag"):
        lock_guard("x", etag=True)  # type: ignore[call-arg]  # what a type checker would have told
