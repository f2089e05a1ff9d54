from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI

from grelmicro_fastapi.app.grelmicro import Grelmicro
from grelmicro_fastapi.coordination.guards import ReadGuard, WriteGuard
from grelmicro_fastapi.providers.memory import MemoryProvider
from grelmicro_fastapi.web.dependencies import read_guard, write_guard
from grelmicro_fastapi.web.leader import leader_guard


def installed() -> FastAPI:
    app = FastAPI()
    Grelmicro(uses=[MemoryProvider()]).install(app)
    return app


def operation(app: FastAPI, path: str, method: str = "get") -> dict[str, Any]:
    return dict(app.openapi()["paths"][path][method])


def below(guard: Annotated[WriteGuard, Depends(write_guard("below"))]) -> None: ...


async def handle() -> None: ...


def test_a_guarded_route_documents_its_guard_and_its_answers() -> None:
    app = installed()
    app.put("/x", dependencies=[Depends(write_guard("a:{b}", wait=2, hold="response"))])(handle)
    shown = operation(app, "/x", "put")
    assert shown["x-guards"] == [{"name": "a:{b}", "mode": "write", "hold": "response", "wait": 2}]
    assert {"200", "409", "503"} <= shown["responses"].keys()
    assert not {"412", "428", "304"} & shown["responses"].keys()
    busy = shown["responses"]["409"]
    assert "lock-contended" in busy["description"]
    assert "Retry-After" in busy["headers"]
    reference = busy["content"]["application/problem+json"]["schema"]["$ref"]
    assert reference.rpartition("/")[2] in app.openapi()["components"]["schemas"]


def test_conditional_headers_are_documented() -> None:
    app = installed()
    app.get("/x", dependencies=[Depends(read_guard("x", etag=True))])(handle)
    app.put("/x", dependencies=[Depends(write_guard("x", if_match="required"))])(handle)
    app.patch("/x", dependencies=[Depends(write_guard("x", if_match="optional", etag=True))])(handle)
    read, required, optional = operation(app, "/x"), operation(app, "/x", "put"), operation(app, "/x", "patch")
    assert [one["name"] for one in read["parameters"]] == ["If-None-Match"]
    assert "304" in read["responses"]
    assert "ETag" in read["responses"]["200"]["headers"]
    assert [(one["name"], one["required"]) for one in required["parameters"]] == [("If-Match", True)]
    assert {"412", "428"} <= required["responses"].keys()
    assert "ETag" in required["responses"]["412"]["headers"]
    assert "headers" not in required["responses"]["200"]
    assert [(one["name"], one["required"]) for one in optional["parameters"]] == [("If-Match", False)]
    assert "428" not in optional["responses"]
    assert "ETag" in optional["responses"]["200"]["headers"]


def test_guards_are_found_in_included_routers_parameters_and_dependencies() -> None:
    app = installed()
    inner, outer = APIRouter(prefix="/in"), APIRouter(prefix="/out", dependencies=[Depends(write_guard("outer"))])

    @inner.get("/{number}", dependencies=[Depends(below)])
    async def show(number: int, guard: Annotated[ReadGuard, Depends(read_guard("own"))]) -> None: ...

    outer.include_router(inner)
    app.include_router(outer)
    names = {guard["name"] for guard in operation(app, "/out/in/{number}")["x-guards"]}
    assert names == {"outer", "below", "own"}


def test_what_the_user_wrote_stays() -> None:
    app = installed()
    mine: dict[int | str, dict[str, Any]] = {409: {"description": "mine"}, "503": {"description": "also mine"}}
    app.get(
        "/x",
        dependencies=[Depends(write_guard("x"))],
        responses=mine,
        openapi_extra={"x-guards": [{"name": "mine"}], "parameters": [{"name": "if-match", "in": "header"}]},
    )(handle)
    shown = operation(app, "/x")
    assert shown["responses"]["409"]["description"] == "mine"
    assert shown["responses"]["503"]["description"] == "also mine"
    assert shown["x-guards"][0] == {"name": "mine"}


def test_the_status_of_a_busy_lock_is_documented_as_chosen_and_not_where_none_is_bound() -> None:
    app = installed()
    app.get("/423", dependencies=[Depends(write_guard("x", status=423))])(handle)
    app.get("/none", dependencies=[Depends(write_guard("x", required=False))])(handle)
    assert "423" in operation(app, "/423")["responses"]
    assert "409" not in operation(app, "/423")["responses"]
    assert "409" not in operation(app, "/none")["responses"]


def test_a_route_of_the_leader_says_that_others_do_not_answer() -> None:
    app = installed()
    app.get("/led", dependencies=[Depends(leader_guard("main"))])(handle)
    app.get("/perhaps", dependencies=[Depends(leader_guard("main", required=False))])(handle)
    app.put("/both", dependencies=[Depends(leader_guard("main")), Depends(write_guard("x"))])(handle)
    led, both = operation(app, "/led"), operation(app, "/both", "put")
    assert led["x-guards"] == [{"name": "main", "mode": "leader"}]
    assert "not-leader" in led["responses"]["503"]["description"]
    assert "409" not in led["responses"]
    assert "503" not in operation(app, "/perhaps")["responses"]
    for word in ("not-leader", "coordination-unavailable", "guard-lost"):
        assert word in both["responses"]["503"]["description"]


def test_all_that_several_guards_of_a_route_may_answer_is_documented() -> None:
    app = installed()
    guards = [Depends(read_guard("x")), Depends(write_guard("y", status=423)), Depends(write_guard("z", status=503))]
    app.get("/x", dependencies=guards)(handle)
    responses = operation(app, "/x")["responses"]
    assert {"409", "423", "503"} <= responses.keys()
    for word in ("lock-contended", "coordination-unavailable"):
        assert word in responses["503"]["description"]


def test_a_route_added_after_the_schema_was_asked_for_is_documented_too() -> None:
    app = installed()
    app.get("/free")(handle)
    assert "x-guards" not in operation(app, "/free")
    assert "schemas" not in app.openapi().get("components", {})
    app.get("/x", dependencies=[Depends(write_guard("x"))])(handle)
    app.openapi_schema = None
    first = operation(app, "/x")
    assert first == operation(app, "/x")
    assert len(first["x-guards"]) == 1


@pytest.mark.parametrize("hidden", ["route", "websocket"])
def test_what_the_schema_hides_stays_hidden(hidden: str) -> None:
    app = installed()
    guard = [Depends(write_guard("x"))]
    if hidden == "route":
        app.get("/x", dependencies=guard, include_in_schema=False)(handle)
    else:
        app.websocket("/x", dependencies=guard)(handle)
    assert app.openapi()["paths"] == {}
