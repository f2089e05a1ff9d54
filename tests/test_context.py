"""Which app answers on a loop."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio.to_thread
import pytest

from grelmicro_fastapi import context
from grelmicro_fastapi.context import closed, current, opened
from grelmicro_fastapi.errors import NotRunningError


@dataclass(eq=False)
class Shop:
    coordination: object = field(default_factory=object)


def on_a_loop(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await body()

    asyncio.run(main())


def test_the_one_open_app_answers() -> None:
    async def body() -> None:
        shop = Shop()
        opened(shop)
        assert current() is shop
        closed(shop)
        with pytest.raises(NotRunningError):
            current()

    on_a_loop(body)


def test_with_several_open_apps_nobody_is_guessed() -> None:
    async def body() -> None:
        one, other = Shop(), Shop()
        opened(one)
        opened(other)
        with pytest.raises(NotRunningError, match=r"^2 .*backend="):
            current()
        closed(one)
        assert current() is other
        closed(other)

    on_a_loop(body)


def test_opened_is_counted() -> None:
    async def body() -> None:
        shop = Shop()
        opened(shop)
        opened(shop)
        closed(shop)
        assert current() is shop
        closed(shop)
        closed(shop)
        with pytest.raises(NotRunningError):
            current()

    on_a_loop(body)


@pytest.mark.parametrize(
    "cure",
    ["lifespan=micro.lifespan", "with TestClient(app)", "LifespanManager", "mounted", "async with micro", "backend="],
)
def test_with_no_open_app_the_error_names_the_cures(cure: str) -> None:
    async def body() -> None:
        with pytest.raises(NotRunningError) as raised:
            current()
        assert cure in str(raised.value)

    on_a_loop(body)


def test_loops_do_not_see_each_others_apps() -> None:
    ready, done = threading.Event(), threading.Event()
    mine, theirs = Shop(), Shop()
    seen: list[object] = []

    async def beside() -> None:
        opened(theirs)
        seen.append(current())
        ready.set()
        await asyncio.to_thread(done.wait, 5)
        seen.append(current())
        closed(theirs)

    async def body() -> None:
        opened(mine)
        thread = threading.Thread(target=asyncio.run, args=(beside(),))
        thread.start()
        assert await asyncio.to_thread(ready.wait, 5)
        assert current() is mine
        closed(mine)
        done.set()
        await asyncio.to_thread(thread.join)

    on_a_loop(body)
    assert seen == [theirs, theirs]


def test_the_loops_with_an_open_app_are_known() -> None:
    async def body() -> None:
        shop = Shop()
        assert context.loops() == []
        opened(shop)
        assert context.loops() == [asyncio.get_running_loop()]
        assert await anyio.to_thread.run_sync(context.running_loop) is asyncio.get_running_loop()
        closed(shop)
        assert context.loops() == []

    on_a_loop(body)
    assert context.running_loop() is None


def test_a_worker_thread_asks_the_loop_that_started_it() -> None:
    async def body() -> None:
        shop = Shop()
        opened(shop)
        assert await anyio.to_thread.run_sync(current) is shop
        closed(shop)
        with pytest.raises(NotRunningError):
            await anyio.to_thread.run_sync(current)

    on_a_loop(body)


def test_a_thread_of_nobody_is_told_how_to_ask() -> None:
    with pytest.raises(NotRunningError, match="backend="):
        current()


def test_an_app_that_was_never_closed_does_not_keep_its_loop_for_ever() -> None:
    async def forgets() -> weakref.ref[asyncio.AbstractEventLoop]:
        shop = Shop(coordination=asyncio.get_running_loop())
        opened(shop)
        return weakref.ref(asyncio.get_running_loop())

    async def next_one() -> None:
        shop = Shop()
        opened(shop)
        closed(shop)

    left = asyncio.run(forgets())
    asyncio.run(next_one())
    gc.collect()
    assert left() is None
    assert not context._apps
