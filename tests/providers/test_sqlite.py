"""What is peculiar to the store in a SQLite file."""

import asyncio
import contextlib
import gc
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from grelmicro_fastapi.coordination.rules import step
from grelmicro_fastapi.coordination.state import (
    CLAIM,
    VERSION,
    Acquire,
    Advance,
    Command,
    Leave,
    Mode,
    Release,
    Renew,
    Reply,
    Verdict,
)
from grelmicro_fastapi.coordination.store import Ask, Scope, Wake
from grelmicro_fastapi.errors import BackendError, SettingsValidationError
from grelmicro_fastapi.providers import sqlite_rows as rows
from grelmicro_fastapi.providers.sqlite import SqliteProvider
from grelmicro_fastapi.providers.sqlite_file import MOUNTS, File, boot_id, refuse_network
from grelmicro_fastapi.providers.sqlite_store import SqliteStore
from grelmicro_fastapi.testing.clock import ManualClock

pytestmark = pytest.mark.anyio

KEY = "lock:stock"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@asynccontextmanager
async def opened(file: Path, clock: ManualClock, **options: Any) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(file, clock, **{"synchronous": "OFF"} | options)
    try:
        await store.open()
        yield store
    finally:
        await store.close()


def write(token: str, seat: str = "", ttl: int = 60_000) -> Acquire:
    return Acquire(token, Mode.WRITE, ttl, seat)


async def ask(store: SqliteStore, command: Command, key: str = KEY) -> Reply:
    (answer,) = await store.apply([Ask(key, command, CLAIM)])
    assert isinstance(answer, Reply), answer
    return answer


# Several processes


def test_processes_that_hammer_one_lock_lose_nothing(file: Path) -> None:
    command = [sys.executable, "-m", "tests.providers.sqlite_process", str(file)]
    processes = [
        subprocess.Popen([*command, name, "40"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for name in "abcd"
    ]
    results = [process.communicate(timeout=60) for process in processes]
    assert [err for _, err in results] == [""] * 4
    fences = [int(fence) for out, _ in results for fence in out.split()]
    assert sorted(fences) == list(range(1, 161))
    assert Path(f"{file}.counter").read_text() == "160"


def test_eight_processes_may_start_at_once_on_a_file_that_is_not_there_yet(file: Path) -> None:
    script = """
        import asyncio, sys
        from grelmicro_fastapi.providers.sqlite import SqliteProvider
        async def main():
            sys.stdin.readline()
            async with SqliteProvider(sys.argv[1], synchronous="OFF") as provider:
                await provider.check()
        asyncio.run(main())
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script), str(file)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(8)
    ]
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    results = [(process.communicate(timeout=60)[1], process.returncode) for process in processes]
    assert results == [("", 0)] * 8


def test_a_forked_child_opens_the_file_anew_and_its_parent_goes_on(file: Path) -> None:
    script = """
        import asyncio, os, sys, threading, time, warnings
        from grelmicro_fastapi.coordination.state import Acquire, Mode, Release
        from grelmicro_fastapi.coordination.store import Ask
        from grelmicro_fastapi.errors import BackendError
        from grelmicro_fastapi.providers.sqlite import SqliteProvider
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons advise against what we do here

        async def take(store, token):
            (reply,) = await store.apply([Ask(f"lock:{token}", Acquire(token, Mode.WRITE, 60_000), 250)])
            await store.apply([Ask(f"lock:{token}", Release(token), 250)])
            return reply.fence

        async def child(inherited):
            try:
                await inherited.peek("lock:x")
            except BackendError as error:
                assert "forked" in str(error)
            else:
                raise AssertionError("the inherited store answered")
            async with SqliteProvider(sys.argv[1], synchronous="OFF") as provider:
                store = provider.backend.crew().store
                return [await take(store, "child") for n in range(50)]

        async def main():
            async with SqliteProvider(sys.argv[1], synchronous="OFF") as provider:
                store = provider.backend.crew().store
                listener = asyncio.create_task(store.listen(lambda wake: None))
                busy = [asyncio.create_task(take(store, f"parent{n}")) for n in range(50)]
                begun = threading.Event()

                def slowly(db):
                    begun.set()
                    time.sleep(0.1)  # the fork waits for this to end, so nothing after the fork can end it

                busy.append(asyncio.create_task(store._write(slowly)))
                while not begun.is_set():
                    await asyncio.sleep(0)
                pid = os.fork()  # in the middle of a transaction
                if pid == 0:
                    asyncio.events._set_running_loop(None)
                    try:
                        fences = asyncio.run(child(store))
                    except BaseException as error:
                        print(repr(error), file=sys.stderr, flush=True)
                        os._exit(2)
                    os._exit(0 if fences == list(range(1, 51)) else 3)
                assert await asyncio.gather(*busy) == [1] * 50 + [None]
                while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
                    await take(store, "parent")
                assert os.waitstatus_to_exitcode(ended[1]) == 0, ended
                # The file is whole, and both saw the same one.
                print((await store.peek("lock:child")).state.fence)
                listener.cancel()
        asyncio.run(main())
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("50\n", "", 0)


async def test_two_loops_of_one_process_share_the_file(file: Path) -> None:
    provider = SqliteProvider(file, synchronous="OFF")

    async def visit(token: str) -> Verdict:
        async with provider:
            return (await ask(provider.backend.crew().store, write(token))).verdict  # type: ignore[arg-type]

    assert await visit("here") is Verdict.GRANTED
    assert await asyncio.to_thread(asyncio.run, visit("there")) is Verdict.HELD


# Durability


async def test_a_file_is_written_ahead_and_a_fence_waits_for_the_disk(file: Path, clock: ManualClock) -> None:
    async with opened(file, clock, synchronous="FULL") as store:

        def pragma(name: str) -> object:
            db = store._file._slot.db
            assert db
            return db.execute(f"PRAGMA {name}").fetchone()[0]

        full, normal = 2, 1
        assert pragma("journal_mode") == "wal"
        for command, expected in [
            (write("one"), full),
            (Renew("one", 60_000), normal),
            (Release("one"), normal),
            (Advance("one", 5), full),
            (Acquire("two", Mode.READ, 60_000), normal),
            (Release("two"), normal),
        ]:
            await ask(store, command)
            assert pragma("synchronous") == expected, command
        await store.apply([Ask(KEY, Release("none"), CLAIM), Ask(KEY, write("three"), CLAIM)])
        assert pragma("synchronous") == full


async def test_full_is_the_default_of_the_provider(file: Path) -> None:
    assert SqliteProvider(file)._store()._file._synchronous == "FULL"


async def test_refusals_and_empty_questions_write_nothing(file: Path, clock: ManualClock) -> None:
    async with opened(file, clock) as store, aiosqlite.connect(file) as other:

        async def version() -> object:
            return await (await other.execute("PRAGMA data_version")).fetchone()

        await ask(store, write("one"))
        before = await version()
        for _ in range(5):
            assert (await ask(store, write("two"))).verdict is Verdict.HELD
            assert (await ask(store, Release("two"))).verdict is Verdict.GONE
            assert (await ask(store, write("new")._replace(expect=7), "lock:new")).verdict is Verdict.MISMATCH
            await store.peek(KEY)
        assert await version() == before
        await ask(store, Release("one"))
        assert await version() != before


async def test_states_survive_the_end_of_the_process(file: Path, clock: ManualClock) -> None:
    commands = [
        Acquire("r", Mode.READ, 60_000, note="who"),
        write("w1", "a/w"),
        Acquire("r2", Mode.READ, 5_000, "b/r"),
        write("w2", "c/w"),
        Leave("a/w"),
        write("w1", "a/w"),
    ]
    async with opened(file, clock) as store:
        for command in commands:
            await ask(store, command)
        before = await store.peek(KEY)
    async with opened(file, clock) as store:
        after = await store.peek(KEY)
    assert after == before
    assert [seat.id for seat in after.state.seats] == ["b/r", "c/w", "a/w"]


async def test_a_seat_given_up_and_taken_again_in_one_batch_stands_at_the_end(file: Path, clock: ManualClock) -> None:
    async with opened(file, clock) as store:
        await ask(store, write("held"))
        await ask(store, write("a", "a/w"))
        await ask(store, write("b", "b/w"))
        await store.apply([Ask(KEY, Leave("a/w"), CLAIM), Ask(KEY, write("a", "a/w"), CLAIM)])
    async with opened(file, clock) as store:
        assert [seat.id for seat in (await store.peek(KEY)).state.seats] == ["b/w", "a/w"]


# The clock and the boot


async def test_after_a_reboot_every_lease_is_dead_and_poisons(file: Path, clock: ManualClock) -> None:
    async with opened(file, clock, boot=lambda: "monday") as store:
        await ask(store, write("writer", ttl=3_600_000))
        await ask(store, write("waits", "a/w"))
        await ask(store, Acquire("reader", Mode.READ, 3_600_000), "lock:read")
        await ask(store, write("task"), "lock:rests")
        await ask(store, Release("task", min_hold=3_600_000), "lock:rests")
        before = (await store.peek(KEY)).now
    # The machine came back at once, with its uptime at nought and its wall clock an hour slow.
    rebooted = ManualClock(now=5, wall=clock.wall() - 3_600)
    async with opened(file, rebooted, boot=lambda: "tuesday") as store:
        assert (await store.peek(KEY)).now >= before
        writer = await ask(store, write("next"))
        assert (writer.verdict, writer.fence, writer.poisoned) == (Verdict.GRANTED, 2, True)
        reader = await ask(store, write("next"), "lock:read")
        assert (reader.verdict, reader.fence, reader.poisoned) == (Verdict.GRANTED, 1, False)
        rested = await ask(store, write("next"), "lock:rests")
        assert (rested.verdict, rested.fence, rested.poisoned) == (Verdict.GRANTED, 2, False)
    async with opened(file, rebooted, boot=lambda: "tuesday") as store:
        assert (await ask(store, write("other"))).verdict is Verdict.HELD


async def test_a_reboot_leaves_states_of_a_newer_law_alone(file: Path, clock: ManualClock) -> None:
    async with opened(file, clock, boot=lambda: "monday") as store:
        await ask(store, write("writer", ttl=3_600_000))
        before = (await store.peek(KEY)).state
    await stamp(file, VERSION + 1)
    async with opened(file, clock, boot=lambda: "tuesday"):
        pass
    await stamp(file, VERSION)
    async with opened(file, clock, boot=lambda: "tuesday") as store:
        assert (await store.peek(KEY)).state == before


async def stamp(file: Path, version: int) -> None:
    async with aiosqlite.connect(file) as db:
        await db.execute("UPDATE grelmicro_lock SET version = ?", (version,))
        await db.commit()


async def test_an_uptime_that_went_back_is_a_reboot_where_boots_have_no_name(file: Path, clock: ManualClock) -> None:
    async with opened(file, clock, boot=lambda: "") as store:
        await ask(store, write("one"))
    async with opened(file, ManualClock(now=1, wall=clock.wall()), boot=lambda: "") as store:
        assert (await ask(store, write("two"))).poisoned


async def test_a_step_of_the_wall_clock_changes_no_lease(file: Path, clock: ManualClock) -> None:
    async with opened(file, clock) as store:
        await ask(store, write("one"))
        before = (await store.peek(KEY)).now
        clock.step_wall(86_400)
        assert (await store.peek(KEY)).now == before
    async with opened(file, clock) as store:
        assert (await store.peek(KEY)).now == before


# What waiters see


async def test_waiters_are_woken_for_their_own_key_only_and_cost_nothing_meanwhile(
    file: Path, clock: ManualClock
) -> None:
    heard: list[Wake] = []
    news = asyncio.Event()

    def woken(wake: Wake | None) -> None:
        if wake:
            heard.append(wake)
            news.set()

    async with opened(file, clock) as holder, opened(file, clock) as waiter:
        listener = asyncio.create_task(waiter.listen(woken))
        await ask(holder, write("held"))
        await ask(waiter, write("waits", f"{waiter.channel}/w"))
        db = waiter._file._slot.db
        assert db
        before = db.total_changes
        for number in range(20):
            await ask(holder, write(f"t{number}"), "lock:another")
            await ask(holder, Release(f"t{number}"), "lock:another")
        assert heard == []
        # Whose lease is renewed tells how long there is to wait.
        await ask(holder, Renew("held", 120_000))
        async with asyncio.timeout(10):
            await news.wait()
            news.clear()
            assert [wake.after for wake in heard] == [120_000]
            await ask(holder, Release("held"))
            await news.wait()
        assert heard[1:] == [Wake(KEY, f"{waiter.channel}/w", 0)]
        assert db.total_changes == before
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)


def release_unseen(store: SqliteStore, token: str) -> None:
    """Another process releases, while the loop of this one is busy and its look-out is not."""
    other = File(store._file.path, ManualClock(), "OFF", 5, boot_id, MOUNTS)

    def release(db: sqlite3.Connection) -> bool:
        kept = rows.load(db, KEY, 0)
        if not kept.state.seats:
            return False
        step(kept.state, Release(token), kept.state.touched)
        return rows.save(db, KEY, kept)

    while not other.write(release, lambda: False):
        pass
    other.close()
    time.sleep(0.03)  # several looks of the other thread, which can tell nobody here: this loop must stand still


async def test_a_change_before_the_asker_heard_of_its_refusal_is_not_missed(file: Path, clock: ManualClock) -> None:
    heard: asyncio.Queue[Wake | None] = asyncio.Queue()
    async with opened(file, clock) as store:
        listener = asyncio.create_task(store.listen(heard.put_nowait))
        for key in (KEY, "lock:other"):
            await ask(store, write("held"), key)
        await ask(store, write("looks out", f"{store.channel}/w"), "lock:other")
        async with asyncio.timeout(10):
            assert await heard.get() is None
            refused = asyncio.create_task(ask(store, write("waits", f"{store.channel}/w")))
            await asyncio.sleep(0)
            release_unseen(store, "held")
            assert (await refused).verdict is Verdict.HELD
            assert await heard.get() == Wake(KEY, f"{store.channel}/w", 0)
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)


async def test_a_seat_that_ran_out_unseen_is_told_to_ask_again(file: Path, clock: ManualClock) -> None:
    heard: asyncio.Queue[Wake | None] = asyncio.Queue()
    async with opened(file, clock) as holder, opened(file, clock) as waiter:
        listener = asyncio.create_task(waiter.listen(heard.put_nowait))
        await ask(holder, write("held"))
        await ask(waiter, write("waits", f"{waiter.channel}/w"))
        await clock.advance(4)
        await ask(holder, Renew("held", 60_000))
        async with asyncio.timeout(10):
            assert await heard.get() is None
            assert await heard.get() == Wake(KEY, f"{waiter.channel}/w", 0)
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)


# Trouble with the file


async def test_a_busy_file_is_waited_for(file: Path, clock: ManualClock) -> None:
    async with opened(file, clock) as store:
        other = sqlite3.connect(file, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        asked = asyncio.create_task(ask(store, write("one")))
        for _ in range(20):
            await asyncio.sleep(0.001)
            assert not asked.done()
        other.execute("COMMIT")
        assert (await asked).verdict is Verdict.GRANTED
        other.close()


async def test_a_file_that_stays_busy_is_an_error_and_the_store_works_again_afterwards(
    file: Path, clock: ManualClock
) -> None:
    async with opened(file, clock, timeout=0.05) as store:
        with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(BackendError, match="locked by another process"):
                await ask(store, write("one"))
            other.execute("COMMIT")
        assert (await ask(store, write("one"))).fence == 1


async def test_who_is_cancelled_while_the_file_is_busy_holds_nobody_up(file: Path, clock: ManualClock) -> None:
    async with opened(file, clock, timeout=600) as store:
        with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            asks = [asyncio.create_task(ask(store, write(f"t{number}"))) for number in range(3)]
            await asyncio.sleep(0.005)
            for asked in asks:
                asked.cancel()
            # A look needs no writer's lock: it comes through as soon as the thread has left the others.
            async with asyncio.timeout(10):
                assert (await store.peek(KEY)).state.writer is None
            other.execute("COMMIT")
        await asyncio.gather(*asks, return_exceptions=True)
        assert (await ask(store, write("next"))).fence == 1


async def test_a_missing_folder_is_an_error_until_it_is_there(tmp_path: Path, clock: ManualClock) -> None:
    file = tmp_path / "later" / "locks.db"
    store = SqliteStore(file, clock)
    with pytest.raises(BackendError, match="unable to open"):
        await store.open()
    with pytest.raises(BackendError):
        await ask(store, write("one"))
    file.parent.mkdir()
    assert (await ask(store, write("one"))).fence == 1
    await store.close()


async def test_a_closed_store_answers_with_an_error(file: Path, clock: ManualClock) -> None:
    async with opened(file, clock) as store:
        pass
    with pytest.raises(BackendError, match="not open"):
        await ask(store, write("one"))


@pytest.fixture
def nonsense(file: Path) -> Path:
    file.write_bytes(b"this is not a database" * 100)
    return file


async def test_a_file_that_is_no_database_is_an_error_that_names_it(nonsense: Path, clock: ManualClock) -> None:
    store = SqliteStore(nonsense, clock)
    with pytest.raises(BackendError, match=r"locks\.db"):
        await store.open()
    await store.close()


async def test_a_file_that_was_replaced_is_opened_anew(
    file: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(file, clock) as store:
        await ask(store, write("one"))
        for left in file.parent.glob("locks.db*"):
            left.unlink()
        async with opened(file, clock) as other:
            assert (await ask(other, write("two"))).fence == 1
            assert (await ask(store, write("three"))).verdict is Verdict.HELD
    assert "replaced" in caplog.text


async def test_a_damaged_state_is_an_error_for_its_own_key_only(file: Path, clock: ManualClock) -> None:
    async with opened(file, clock) as store:
        await ask(store, write("held"))
        await ask(store, write("waits", "a/w"))
        async with aiosqlite.connect(file) as db:
            await db.execute("UPDATE grelmicro_holder SET mode = 'x'")
            await db.commit()
        damaged, whole = await store.apply([Ask(KEY, Release("held"), CLAIM), Ask("lock:b", write("b"), CLAIM)])
        assert isinstance(damaged, BackendError)
        assert KEY in str(damaged)
        assert isinstance(whole, Reply)
        with pytest.raises(BackendError, match=KEY):
            await store.peek(KEY)
        assert (await store.peek("lock:b")).state.fence == 1
    async with opened(file, clock, boot=lambda: "another day") as store:
        assert (await ask(store, write("c"), "lock:b")).poisoned


async def test_a_file_of_a_newer_release_is_refused(file: Path, clock: ManualClock) -> None:
    async with opened(file, clock):
        pass
    async with aiosqlite.connect(file) as db:
        await db.execute("UPDATE grelmicro_meta SET value = 2 WHERE name = 'layout'")
        await db.commit()
    store = SqliteStore(file, clock)
    with pytest.raises(BackendError, match="layout 2"):
        await store.open()
    await store.close()


async def test_many_keys_are_gone_through_page_by_page(file: Path, clock: ManualClock) -> None:
    async with opened(file, clock) as store:
        count = 1_201
        await store.apply([Ask(f"lock:{number}", write("one", ttl=1_000), CLAIM) for number in range(count)])
        assert len({key async for key in store.keys("lock:")}) == count
        await clock.advance(1)
        assert await store.vacate() == count


async def test_a_store_dropped_without_being_closed_leaves_no_thread(file: Path, clock: ManualClock) -> None:
    store = SqliteStore(file, clock)
    await store.open()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "grelmicro-sqlite"]
    del store
    gc.collect()
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive()


# Where the file may lie


@pytest.mark.parametrize(
    ("table", "refused"),
    [
        ("/dev/sda / ext4 rw 0 0\nserver:/x /data nfs4 rw 0 0", True),
        ("server:/x / nfs rw 0 0\n/dev/sda /data ext4 rw 0 0", False),
        ("/dev/sda / ext4 rw 0 0\nserver:/x /dat nfs4 rw 0 0", False),
        ("/dev/sda / ext4 rw 0 0\n//server/x /data\\040base cifs rw 0 0", False),
        ("/dev/sda / ext4 rw 0 0\nme@server:x /data fuse.sshfs rw 0 0", True),
        ("overlay / overlay rw 0 0\nfuse /data fuse.fuse-overlayfs rw 0 0", False),
        ("server:/x /data nfs rw 0 0\n/dev/sda /data ext4 rw 0 0", False),
    ],
)
def test_a_network_file_system_is_refused(table: str, refused: bool, tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(table + "\n")
    with pytest.raises(SettingsValidationError, match="network") if refused else contextlib.nullcontext():
        refuse_network(Path("/data/locks.db"), mounts)


def test_a_mount_point_with_a_space_in_it_is_recognised(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("/dev/sda / ext4 rw 0 0\n//server/x /data\\040base cifs rw 0 0\n")
    with pytest.raises(SettingsValidationError, match="cifs"):
        refuse_network(Path("/data base/locks.db"), mounts)


@pytest.fixture
def network(tmp_path: Path) -> Path:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"server:/x {tmp_path} nfs4 rw 0 0\n")
    return mounts


async def test_opening_on_a_network_file_system_raises(file: Path, clock: ManualClock, network: Path) -> None:
    store = SqliteStore(file, clock, mounts=network)
    with pytest.raises(SettingsValidationError):
        await store.open()
    await store.close()


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("locks.db", "locks.db"),
        ("/var/lib/locks.db", "/var/lib/locks.db"),
        ("sqlite:///locks.db", "locks.db"),
        ("sqlite:////var/lib/locks.db", "/var/lib/locks.db"),
        ("sqlite+aiosqlite:///data/locks.db", "data/locks.db"),
        (Path("locks.db"), "locks.db"),
    ],
)
def test_a_path_may_be_given_as_a_url(given: str | Path, path: str) -> None:
    assert SqliteProvider(given).path == Path(path)


@pytest.mark.parametrize(
    "given",
    [
        "",
        ":memory:",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "file::memory:?cache=shared",
        "sqlite:locks.db",
        "sqlite://locks.db",
        "sqlite:///locks.db?timeout=3",
    ],
)
def test_what_is_no_file_is_refused(given: str) -> None:
    with pytest.raises(SettingsValidationError):
        SqliteProvider(given)


def test_the_environment_says_where_if_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLITE_PATH", "/var/lib/env.db")
    assert SqliteProvider().path == Path("/var/lib/env.db")
    assert SqliteProvider("mine.db").path == Path("mine.db")
    monkeypatch.setenv("SQLITE_PATH", "")
    with pytest.raises(SettingsValidationError, match="SQLITE_PATH"):
        SqliteProvider()


@pytest.mark.parametrize(
    "options", [{"synchronous": "SOMETIMES"}, {"timeout": 0}, {"timeout": float("nan")}, {"timeout": "5"}, {"path": 7}]
)
def test_options_are_checked_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(SettingsValidationError, match=next(iter(options))):
        SqliteProvider(**{"path": "locks.db", **options})


async def test_a_path_where_no_file_can_be_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    with pytest.raises(SettingsValidationError, match=r"the folder of .*/later/locks\.db' does not exist: make it"):
        await SqliteProvider(tmp_path / "later" / "locks.db").open()
    with pytest.raises(SettingsValidationError, match="is a folder"):
        await SqliteProvider(tmp_path).open()


async def test_a_borrowed_connection_lends_its_file_and_stays_open(file: Path) -> None:
    async with aiosqlite.connect(file) as client:
        async with SqliteProvider.from_client(client) as provider:
            await provider.check()
            assert provider.path == file
        await client.execute("SELECT 1")


async def test_a_borrowed_connection_to_memory_is_refused() -> None:
    async with aiosqlite.connect(":memory:") as client:
        with pytest.raises(SettingsValidationError, match="MemoryProvider"):
            await SqliteProvider.from_client(client).open()


def test_the_scope_is_the_host() -> None:
    assert SqliteProvider.scope is Scope.HOST
