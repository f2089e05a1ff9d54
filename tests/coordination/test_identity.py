"""Who asks: workers, tokens, names, loops."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from grelmicro_fastapi.coordination.coordination import Coordination
from grelmicro_fastapi.coordination.identity import default_worker, mint, seat
from grelmicro_fastapi.coordination.lock import Lock
from grelmicro_fastapi.coordination.readwritelock import ReadWriteLock
from grelmicro_fastapi.coordination.state import Mode
from grelmicro_fastapi.errors import LockNotOwnedError, NotRunningError, SettingsValidationError
from grelmicro_fastapi.providers.memory import MemoryProvider
from tests.coordination.crews import Fleet

pytestmark = pytest.mark.anyio


async def test_every_attempt_has_a_token_of_its_own() -> None:
    task = asyncio.current_task()
    tokens = {mint(None, task) for _ in range(1000)}
    assert len(tokens) == 1000
    assert all(token.startswith(f"{default_worker()}:task:") for token in tokens)
    assert mint("me", task).startswith("me:task:")
    assert seat("channel", Mode.READ) != seat("channel", Mode.WRITE)


FORK = """
import os
from grelmicro_fastapi.coordination.identity import default_worker, mint

before, token = default_worker(), mint("same", None)
reading, writing = os.pipe()
if os.fork() == 0:
    os.write(writing, f"{default_worker()} {mint('same', None)}".encode())
    os._exit(0)
os.wait()
worker, childs = os.read(reading, 1000).decode().split()
assert worker != before == default_worker()
# Not even the counted part alone tells parent and child apart: what is secret must differ.
assert childs.rsplit(".", 1)[1] != token.rsplit(".", 1)[1]
print("apart")
"""


def test_a_fork_is_somebody_else() -> None:
    run = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True)
    assert run.stdout == "apart\n"


async def test_equal_workers_never_meet() -> None:
    fleet = Fleet()
    async with fleet.process() as (one, _), fleet.process() as (other, _):
        held = await one.lock(worker="same").acquire()
        with pytest.raises(TimeoutError):
            await other.lock(worker="same").acquire(timeout=0)
        with pytest.raises(LockNotOwnedError):
            await other.lock(worker="same").release()
        writer = (await fleet.state("lock:x")).writer
        assert writer
        assert writer.token.startswith("same:")
        await held.release()


GOOD = ["x", "a:b", "a/b", "a%b{}", "ü", "日本", "'\"\\", " ", "x" * 512, "é" * 256, "🔒"]
BAD = ["", "x" * 513, "é" * 257, "a\0b", "a\nb", "a\x7fb", "a\x85b", "\ud800"]


@pytest.mark.parametrize("name", GOOD)
async def test_a_name_is_taken_as_it_is(name: str) -> None:
    fleet = Fleet()
    async with fleet.process() as (process, _), process.lock(name) as held, process.catalog(name).write as writing:
        assert held.name == writing.name == name
        assert sorted(fleet.memory._states.kept) == [f"lock:{name}", f"rwlock:{name}"]


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("kind", [Lock, ReadWriteLock])
def test_what_is_no_name_is_refused_when_the_lock_is_made(kind: Callable[[str], object], name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        kind(name)


@pytest.mark.parametrize(
    "wrong",
    [
        {"lease_duration": 0},
        {"lease_duration": 0.0001},
        {"lease_duration": float("nan")},
        {"retry_interval": 0},
        {"retry_jitter": 1},
        {"max_hold": 0},
        {"on_lost": "ignore"},
        {"worker": ""},
        {"color": "red"},
    ],
    ids=str,
)
def test_an_option_that_cannot_be_is_refused_and_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsValidationError, match=next(iter(wrong))):
        Lock("x", **wrong)


def test_a_provider_serves_one_loop_after_the_other_and_the_states_stay() -> None:
    provider = MemoryProvider()
    lock = Lock("x", backend=provider)
    fences = []

    async def run() -> None:
        async with provider, lock as held:
            fences.append(held.fencing_token)

    for _ in range(3):
        asyncio.run(run())
    assert fences == [1, 2, 3]


def test_several_loops_at_once_exclude_each_other_and_never_mix_their_crews_up() -> None:
    provider = MemoryProvider()
    lock = Lock("x", backend=provider)
    counter = 0
    crews: list[int] = []

    async def run() -> None:
        nonlocal counter
        async with provider:
            mine = provider.backend.crew()
            crews.append(id(mine))
            everybody.wait(30)
            for _ in range(50):
                async with lock:
                    assert provider.backend.crew() is mine
                    found = counter
                    await asyncio.sleep(0)
                    counter = found + 1
            everybody.wait(30)

    everybody = threading.Barrier(4)
    threads = [threading.Thread(target=lambda: asyncio.run(run())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter == 200
    assert len(set(crews)) == 4


async def test_what_is_not_open_says_how_to_open_it() -> None:
    provider = MemoryProvider()
    for source in (provider, provider.lock(), Coordination(provider)):
        lock = Lock("x", backend=source)
        for call in (lock.acquire, lock.acquire_nowait, lock.release, lock.extend, lock.locked, lock.owned):
            with pytest.raises(NotRunningError, match=r"memory provider is not open on this event loop.*async with"):
                await call()
    for lock in (Lock("x"), ReadWriteLock("x").read):
        with pytest.raises(NotRunningError, match=r"no Grelmicro app is open.*backend="):
            await lock.acquire()
    async with provider, Lock("x", backend=provider.readwritelock()):
        pass
    with pytest.raises(NotRunningError):
        await Lock("x", backend=provider).acquire()


async def test_a_provider_a_backend_and_a_coordination_mean_the_same_lock() -> None:
    provider = MemoryProvider()
    async with Coordination(provider) as coordination:
        sources = [provider, provider.lock(), provider.readwritelock(), coordination]
        held = await Lock("x", backend=sources[0]).acquire()
        for source in sources:
            assert await Lock("x", backend=source).locked()
        await held.release()
