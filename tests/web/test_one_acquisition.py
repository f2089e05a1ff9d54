"""However often a route asks for a name, the request acquires it once and releases it once."""

import asyncio
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Security

from grelmicro_fastapi.app.grelmicro import Grelmicro
from grelmicro_fastapi.coordination.guards import LockHandle, ReadGuard, WriteGuard
from grelmicro_fastapi.coordination.lock import Lock
from grelmicro_fastapi.coordination.readwritelock import ReadWriteLock
from grelmicro_fastapi.providers.memory import MemoryProvider
from grelmicro_fastapi.web.dependencies import lock_guard, read_guard, write_guard
from tests.web.serving import held_elsewhere, problem_of, served

pytestmark = pytest.mark.anyio

Write = Annotated[WriteGuard, Depends(write_guard("x"))]


async def below(guard: Write) -> WriteGuard:
    return guard


async def takes(endpoint: Any, **options: Any) -> list[int]:
    """The tokens that three requests see. Consecutive ones mean one acquisition each."""
    app = FastAPI(lifespan=Grelmicro(uses=[MemoryProvider()]).lifespan)
    router = APIRouter(dependencies=options.pop("router", []))
    router.get("/", **options)(endpoint)
    app.include_router(router)
    async with asyncio.timeout(5), served(app) as client:
        return [int((await client.get("/")).raise_for_status().json()) for _ in range(3)]


async def test_the_same_guard_twice() -> None:
    async def handle(one: Write, two: Write) -> int:
        assert one is two
        return one.fencing_token

    assert await takes(handle) == [1, 2, 3]


async def test_a_guard_made_anew_each_time() -> None:
    async def handle(
        one: Annotated[WriteGuard, Depends(write_guard("x"))], two: Annotated[WriteGuard, Depends(write_guard("x"))]
    ) -> int:
        return one.fencing_token

    assert write_guard("x") == write_guard("x")
    assert write_guard("x") is not write_guard("x")
    assert await takes(handle) == [1, 2, 3]


async def test_in_a_dependency_of_the_route() -> None:
    async def handle(one: Write, two: Annotated[WriteGuard, Depends(below)]) -> int:
        assert one is two
        return one.fencing_token

    assert await takes(handle) == [1, 2, 3]


async def test_in_the_dependencies_of_the_route_and_the_router() -> None:
    async def handle(one: Write) -> int:
        return one.fencing_token

    again = [Depends(write_guard("x"))]
    assert await takes(handle, dependencies=again, router=again) == [1, 2, 3]


async def test_in_function_scope_and_request_scope() -> None:
    async def handle(one: Annotated[WriteGuard, Depends(write_guard("x"), scope="function")], two: Write) -> int:
        assert one is two
        return one.fencing_token

    assert await takes(handle) == [1, 2, 3]


async def test_without_the_cache_and_under_security() -> None:
    async def handle(
        one: Write,
        two: Annotated[WriteGuard, Depends(write_guard("x"), use_cache=False)],
        three: Annotated[WriteGuard, Security(write_guard("x"), scopes=["admin"])],
    ) -> int:
        assert one is two is three
        return one.fencing_token

    assert await takes(handle) == [1, 2, 3]


async def test_with_other_options_and_among_several_names() -> None:
    async def handle(
        one: Write,
        two: Annotated[WriteGuard, Depends(write_guard("x", hold="response", wait=1))],
        both: Annotated[tuple[WriteGuard, ...], Depends(write_guard("y", "x"))],
    ) -> int:
        assert one is two is both[1]
        assert both[0].name == "y"
        return one.fencing_token

    assert await takes(handle) == [1, 2, 3]


async def test_two_names_that_turn_out_to_be_one() -> None:
    app = FastAPI(lifespan=Grelmicro(uses=[MemoryProvider()]).lifespan)

    @app.post("/transfer/{source}/{target}")
    async def transfer(
        source: int,
        target: int,
        guards: Annotated[tuple[WriteGuard, ...], Depends(write_guard("account:{source}", "account:{target}"))],
    ) -> list[str]:
        return [guard.name for guard in guards]

    async with served(app) as client:
        assert (await client.post("/transfer/9/10")).json() == ["account:9", "account:10"]
        assert (await client.post("/transfer/7/007")).json() == ["account:7", "account:7"]


async def test_a_lock_and_a_read_write_lock_of_one_name_are_two() -> None:
    async def handle(one: Write, lock: Annotated[LockHandle, Depends(lock_guard("x"))]) -> int:
        return one.fencing_token * 0 + lock.fencing_token

    assert await takes(handle) == [1, 2, 3]


@pytest.mark.parametrize("order", ["read first", "write first"])
async def test_reading_and_writing_one_name_is_refused_at_once(order: str) -> None:
    memory = MemoryProvider()
    app = FastAPI(lifespan=Grelmicro(uses=[memory]).lifespan)
    guards = [Depends(read_guard("x", wait=None)), Depends(write_guard("x", wait=None))]

    @app.get("/", dependencies=guards if order == "read first" else guards[::-1])
    async def handle() -> None:
        raise AssertionError("unreachable")

    async with served(app) as client:
        async with asyncio.timeout(5):
            answer = await client.get("/")
        assert answer.status_code == 500
        assert problem_of(answer) == "guard-misuse"
        assert not await ReadWriteLock("x", backend=memory).write.locked()


async def test_two_routes_that_name_two_locks_in_opposite_orders_do_not_deadlock() -> None:
    app = FastAPI(lifespan=Grelmicro(uses=[MemoryProvider()]).lifespan)

    @app.post("/ab")
    async def ab(guards: Annotated[tuple[WriteGuard, ...], Depends(write_guard("a", "b", wait=None))]) -> list[str]:
        await asyncio.sleep(0)
        return [guard.name for guard in guards]

    @app.post("/ba")
    async def ba(guards: Annotated[tuple[WriteGuard, ...], Depends(write_guard("b", "a", wait=None))]) -> list[str]:
        await asyncio.sleep(0)
        return [guard.name for guard in guards]

    async with asyncio.timeout(20), served(app) as client:
        answers = await asyncio.gather(*[client.post(path) for path in ["/ab", "/ba"] * 20])
    assert [answer.json() for answer in answers] == [["a", "b"], ["b", "a"]] * 20


async def test_what_was_taken_is_given_back_when_the_next_name_is_busy() -> None:
    memory = MemoryProvider()
    app = FastAPI(lifespan=Grelmicro(uses=[memory]).lifespan)

    @app.get("/", dependencies=[Depends(write_guard("a", "b", wait=0))])
    async def handle() -> None: ...

    async with served(app) as client:
        async with (
            held_elsewhere(Lock("unrelated", backend=memory)),
            held_elsewhere(ReadWriteLock("b", backend=memory).write),
        ):
            assert (await client.get("/")).status_code == 409
            state = await ReadWriteLock("a", backend=memory).state()
        assert not state.writing
        assert not state.poisoned
        assert (await client.get("/")).status_code == 200


async def test_dependency_overrides_find_a_guard_by_its_value() -> None:
    app = FastAPI(lifespan=Grelmicro(uses=[MemoryProvider()]).lifespan)

    @app.get("/")
    async def handle(guard: Annotated[ReadGuard, Depends(read_guard("catalog", wait=2))]) -> object:
        return guard

    app.dependency_overrides[read_guard("catalog", wait=2.0)] = lambda: "fake"
    async with served(app) as client:
        assert (await client.get("/")).json() == "fake"


def test_a_guard_is_a_value() -> None:
    def key() -> str:
        return "x"

    assert len({write_guard("x"), write_guard("x", wait=5), read_guard("x"), lock_guard("x")}) == 3
    assert write_guard("x", requires=(key,)) == write_guard("x", requires=[key])
    assert hash(write_guard("x", requires=[Depends(key)])) == hash(write_guard("x", requires=[Depends(key)]))
    assert write_guard("x", key=key) != write_guard("x")
    assert repr(write_guard("x", "y", wait=0, key=None)) == "write_guard('x', 'y', wait=0)"
    with pytest.raises(AttributeError):
        write_guard("x").options = read_guard("x").options  # type: ignore[misc]  # frozen


@pytest.mark.parametrize(
    "nonsense",
    [
        {"wait": -1},
        {"wait": float("nan")},
        {"hold": "forever"},
        {"status": 200},
        {"if_match": "maybe"},
        {"lease_duration": 0},
        {"max_hold": -1},
        {"on_lost": "ignore"},
    ],
)
def test_an_option_that_makes_no_sense_is_refused_where_it_is_written(nonsense: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(nonsense))):
        write_guard("x", **nonsense)
