"""Locks for code that runs in threads."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Annotated, TypeVar

import pytest
from anyio import to_thread
from fastapi import Depends, FastAPI
from starlette.testclient import TestClient

from grelmicro_fastapi import Grelmicro
from grelmicro_fastapi.coordination import Lock, LockHandle, ReadGuard, ReadWriteLock, TaskLock, WriteGuard
from grelmicro_fastapi.coordination.identity import ThreadOwner
from grelmicro_fastapi.coordination.threads import _Errand
from grelmicro_fastapi.errors import (
    EventLoopDeadlockError,
    LockNotOwnedError,
    LockReentrantError,
    LockTimeoutError,
    LockUpgradeError,
    NotRunningError,
    WouldBlockError,
)
from grelmicro_fastapi.providers.memory import MemoryProvider

pytestmark = pytest.mark.anyio

T = TypeVar("T")


@pytest.fixture
async def provider() -> AsyncIterator[MemoryProvider]:
    async with MemoryProvider() as provider:
        yield provider


async def in_new_thread(act: Callable[[], T]) -> T:
    """In a thread that nobody used before and nobody uses again."""
    with ThreadPoolExecutor(1) as pool:
        return await asyncio.wrap_future(pool.submit(act))


async def test_every_noun_has_a_side_for_threads_which_gives_the_same_guards(provider: MemoryProvider) -> None:
    def act() -> list[object]:
        lock, both = Lock("x", backend=provider), ReadWriteLock("x", backend=provider)
        kinds: list[object] = []
        with lock.from_thread as handle:
            kinds.append(type(handle))
            assert lock.from_thread.locked()
        with both.read.from_thread as reader:
            kinds.append(type(reader))
        with both.write.from_thread as writer:
            kinds.append(type(writer))
        with TaskLock("x", backend=provider).from_thread as handle:
            kinds.append(type(handle))
        return kinds

    assert await in_new_thread(act) == [LockHandle, ReadGuard, WriteGuard, LockHandle]


async def test_acquire_extend_release_and_owned_go_by_thread(provider: MemoryProvider) -> None:
    lock = Lock("x", backend=provider).from_thread

    def act() -> None:
        assert not lock.owned()
        handle = lock.acquire(timeout=0)
        assert lock.owned()
        assert lock.locked()
        lock.extend()
        with pytest.raises(LockReentrantError):
            lock.acquire(timeout=0)
        lock.release()
        assert not handle.valid
        with pytest.raises(LockNotOwnedError):
            lock.release()

    await in_new_thread(act)


async def test_a_thread_does_not_own_what_another_one_acquired(provider: MemoryProvider) -> None:
    lock = Lock("x", backend=provider).from_thread
    with ThreadPoolExecutor(1) as first:
        await asyncio.wrap_future(first.submit(lock.acquire))

        def intrude() -> None:
            assert not lock.owned()
            with pytest.raises(LockNotOwnedError):
                lock.release()
            with pytest.raises(WouldBlockError):
                lock.acquire_nowait()

        await in_new_thread(intrude)
        await asyncio.wrap_future(first.submit(lock.release))


async def test_a_thread_with_a_number_used_before_owns_nothing_of_the_thread_before(provider: MemoryProvider) -> None:
    lock = Lock("x", backend=provider, lease_duration=60).from_thread
    numbers: list[int] = []
    owned: list[bool] = []

    def first() -> None:
        numbers.append(threading.get_ident())
        lock.acquire()

    def later() -> None:
        numbers.append(threading.get_ident())
        owned.append(lock.owned())

    await in_new_thread(first)
    # The numbers of threads that ended are given out again: soon one has the number of the first.
    while numbers[-1] != numbers[0] or len(numbers) == 1:
        await in_new_thread(later)
    assert not any(owned)


async def test_threads_exclude_each_other_and_tasks(provider: MemoryProvider) -> None:
    lock = Lock("x", backend=provider)
    inside, most = 0, 0
    mutex = threading.Lock()

    def enter() -> None:
        nonlocal inside, most
        with mutex:
            inside += 1
            most = max(most, inside)

    def leave() -> None:
        nonlocal inside
        with mutex:
            inside -= 1

    def threaded() -> None:
        for _ in range(20):
            with lock.from_thread:
                enter()
                leave()

    async def task() -> None:
        for _ in range(20):
            async with lock:
                enter()
                await asyncio.sleep(0)
                leave()

    await asyncio.gather(*(to_thread.run_sync(threaded) for _ in range(4)), *(task() for _ in range(4)))
    assert most == 1


async def test_on_the_loop_itself_it_refuses_at_once(provider: MemoryProvider) -> None:
    lock = Lock("x", backend=provider)
    for act in (lock.from_thread.acquire, lock.from_thread.__enter__, lock.from_thread.locked):
        with pytest.raises(EventLoopDeadlockError, match="async with lock"):
            act()
    assert not issubclass(EventLoopDeadlockError, Exception)


async def test_a_body_may_be_left_in_another_thread_than_it_was_entered_in(provider: MemoryProvider) -> None:
    lock = Lock("x", backend=provider)

    def dependency() -> Generator[int, None, None]:
        with lock.from_thread as handle:
            yield handle.fencing_token

    generator = dependency()
    assert await in_new_thread(lambda: next(generator)) == 1
    assert await lock.locked()
    await in_new_thread(generator.close)
    assert not await lock.locked()


async def test_of_several_bodies_each_thread_leaves_its_own(provider: MemoryProvider) -> None:
    lock = ReadWriteLock("x", backend=provider).read.from_thread
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        for pool in (first, second):
            await asyncio.wrap_future(pool.submit(lock.__enter__))
        # By a third thread nobody can say which is meant.
        with pytest.raises(RuntimeError, match="several threads"):
            await in_new_thread(lambda: lock.__exit__(None, None, None))
        for pool in (first, second):
            await asyncio.wrap_future(pool.submit(lock.__exit__, None, None, None))
    assert not await ReadWriteLock("x", backend=provider).write.locked()


async def test_to_leave_what_was_never_entered_is_an_error_that_says_so(provider: MemoryProvider) -> None:
    lock = Lock("x", backend=provider).from_thread
    with pytest.raises(RuntimeError, match="not entered"):
        await in_new_thread(lambda: lock.__exit__(None, None, None))


async def test_a_thread_that_reads_may_not_ask_to_write(provider: MemoryProvider) -> None:
    both = ReadWriteLock("x", backend=provider)

    def act() -> None:
        with both.read.from_thread, pytest.raises(LockUpgradeError):
            both.write.from_thread.acquire(timeout=0)

    await in_new_thread(act)


async def test_a_bounded_wait_ends_in_time_and_leaves_nothing(provider: MemoryProvider) -> None:
    lock = Lock("x", backend=provider)
    async with lock:
        with pytest.raises(LockTimeoutError):
            await in_new_thread(lambda: lock.from_thread.acquire(timeout=0.05))
    assert not await lock.locked()


async def test_an_exception_of_the_body_comes_out_and_the_lock_is_free(provider: MemoryProvider) -> None:
    lock = ReadWriteLock("x", backend=provider)

    def act() -> None:
        with lock.write.from_thread:
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await in_new_thread(act)
    assert not await lock.write.locked()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
async def test_an_interrupted_body_gives_its_lock_back(
    interrupt: type[BaseException], provider: MemoryProvider
) -> None:
    lock = Lock("x", backend=provider)

    def act() -> None:
        with lock.from_thread:
            raise interrupt

    def contained() -> None:
        with pytest.raises(interrupt):
            act()

    await in_new_thread(contained)
    assert not await lock.locked()


async def test_an_interrupted_wait_leaves_nothing(provider: MemoryProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = Lock("x", backend=provider)
    asked = threading.Event()

    def interrupted(*args: object, **options: object) -> None:
        # What Ctrl-C does to a main thread that waits for a loop in another one.
        asked.set()
        raise KeyboardInterrupt

    def act() -> None:
        with pytest.raises(KeyboardInterrupt):
            lock.from_thread.acquire()

    async with lock:
        monkeypatch.setattr("grelmicro_fastapi.coordination.threads.wait", interrupted)
        await in_new_thread(act)
        assert asked.is_set()
    await asyncio.sleep(0)
    async with asyncio.timeout(5), lock:
        pass
    assert not await lock.locked()


async def test_before_anything_is_open_it_names_the_cure() -> None:
    lock = Lock("x", backend=MemoryProvider())
    with pytest.raises(NotRunningError, match="open its provider"):
        await in_new_thread(lock.from_thread.acquire)
    with pytest.raises(NotRunningError, match="no event loop"):
        await in_new_thread(Lock("x").from_thread.acquire)


def test_the_loop_of_another_thread_answers() -> None:
    provider = MemoryProvider()
    ready, done = threading.Event(), threading.Event()

    async def serve() -> None:
        async with provider:
            ready.set()
            await asyncio.to_thread(done.wait, 20)

    server = threading.Thread(target=asyncio.run, args=(serve(),))
    server.start()
    ready.wait(20)
    with Lock("x", backend=provider).from_thread as handle:
        assert handle.fencing_token == 1
    done.set()
    server.join()


def test_a_loop_may_wait_for_another_loop() -> None:
    provider = MemoryProvider()
    ready, done = threading.Event(), threading.Event()

    async def serve() -> None:
        async with provider:
            ready.set()
            await asyncio.to_thread(done.wait, 20)

    async def other_loop() -> int:
        # Not wise, but no deadlock: it is another loop that answers.
        with Lock("x", backend=provider).from_thread as handle:
            return handle.fencing_token

    server = threading.Thread(target=asyncio.run, args=(serve(),))
    server.start()
    ready.wait(20)
    assert asyncio.run(other_loop()) == 1
    done.set()
    server.join()


def test_with_several_loops_a_worker_thread_asks_its_own_and_a_stranger_is_told() -> None:
    provider = MemoryProvider()
    met, done = threading.Barrier(3), threading.Event()
    tokens: list[int] = []

    def work() -> None:
        with Lock("x", backend=provider).from_thread as handle:
            tokens.append(handle.fencing_token)

    async def serve() -> None:
        async with provider:
            await asyncio.to_thread(met.wait, 20)
            await to_thread.run_sync(work)
            await asyncio.to_thread(done.wait, 20)

    servers = [threading.Thread(target=asyncio.run, args=(serve(),)) for _ in range(2)]
    for server in servers:
        server.start()
    met.wait(20)
    with pytest.raises(NotRunningError, match="2 event loops"):
        Lock("x", backend=provider).from_thread.acquire()
    done.set()
    for server in servers:
        server.join()
    assert sorted(tokens) == [1, 2]


def test_a_loop_that_stops_meanwhile_lets_go_of_who_waits_for_it() -> None:
    provider = MemoryProvider()
    ready, gave_up = threading.Event(), threading.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        await provider.open()
        await Lock("x", backend=provider).acquire()
        ready.set()
        await asyncio.Event().wait()

    def run() -> None:
        task = loop.create_task(serve())
        loop.run_forever()
        gave_up.wait(20)
        task.cancel()
        loop.run_until_complete(provider.close())

    server = threading.Thread(target=run)
    server.start()
    ready.wait(20)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Lock("x", backend=provider).from_thread.acquire)
        loop.call_soon_threadsafe(loop.call_later, 0.1, loop.stop)
        with pytest.raises(NotRunningError, match="has stopped"):
            waiting.result(20)
    gave_up.set()
    server.join()
    loop.close()


def test_a_sync_handler_takes_a_lock_ambiently_and_from_a_dependency() -> None:
    app = FastAPI(lifespan=Grelmicro(uses=[MemoryProvider()]).lifespan)

    def stock() -> Generator[int, None, None]:
        with Lock("stock").from_thread as handle:
            yield handle.fencing_token

    @app.get("/")
    def handle(token: Annotated[int, Depends(stock)]) -> list[int]:
        with ReadWriteLock("catalog").write.from_thread as guard:
            return [token, guard.fencing_token]

    @app.get("/free")
    async def free() -> list[bool]:
        return [await Lock("stock").locked(), await ReadWriteLock("catalog").write.locked()]

    with TestClient(app) as client:
        assert [client.get("/").json() for _ in range(2)] == [[1, 1], [2, 2]]
        assert client.get("/free").json() == [False, False]


def test_a_sync_call_in_an_async_handler_is_an_error_and_no_freeze() -> None:
    app = FastAPI(lifespan=Grelmicro(uses=[MemoryProvider()]).lifespan)

    @app.get("/")
    async def handle() -> str:
        try:
            with Lock("x").from_thread:
                return "frozen"
        except EventLoopDeadlockError as error:
            return type(error).__name__

    with TestClient(app) as client:
        assert client.get("/").json() == "EventLoopDeadlockError"


async def test_a_generator_that_the_collector_ends_on_the_loop_does_not_freeze_it(provider: MemoryProvider) -> None:
    lock = Lock("x", backend=provider, lease_duration=60)

    @contextmanager
    def held() -> Generator[None, None, None]:
        with lock.from_thread:
            yield

    context = held()
    await in_new_thread(context.__enter__)
    assert await lock.locked()
    del context
    gc.collect()
    async with asyncio.timeout(5), lock:
        pass
    assert not await lock.locked()


async def test_a_guard_that_comes_in_the_moment_of_ctrl_c_is_given_back(
    provider: MemoryProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = Lock("x", backend=provider)

    def interrupted(futures: list[Future[object]], timeout: float) -> None:
        while not futures[0].done():
            pass
        raise KeyboardInterrupt

    def act() -> None:
        with pytest.raises(KeyboardInterrupt):
            lock.from_thread.acquire()

    monkeypatch.setattr("grelmicro_fastapi.coordination.threads.wait", interrupted)
    await in_new_thread(act)
    async with asyncio.timeout(5), lock:
        pass


async def test_a_guard_that_comes_after_ctrl_c_is_given_back_too(provider: MemoryProvider) -> None:
    lock = Lock("x", backend=provider)
    errand = _Errand(lock.acquire, ThreadOwner())
    assert errand.give_up() is None
    await asyncio.create_task(errand.run())
    async with asyncio.timeout(5), lock:
        pass
