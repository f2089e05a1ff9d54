"""Stores over a stand-in that the test can look into and order faults from."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from grelmicro_fastapi.coordination.state import CLAIM, Acquire, Command, Mode, Release, Reply
from grelmicro_fastapi.coordination.store import Answer, Ask, Store, Wake
from grelmicro_fastapi.providers.kubernetes import KubernetesProvider
from grelmicro_fastapi.providers.kubernetes_names import RECORD, Names
from grelmicro_fastapi.providers.kubernetes_store import KubernetesStore
from grelmicro_fastapi.testing.clock import ManualClock
from tests.servers.kubernetes import LeaseServer
from tests.servers.kubernetes_leases import Lease

KEY = "lock:x"
LEASE = 10_000
_numbers = itertools.count()


class Site:
    """A server, and as many stores as the test wants, each as on a host of its own."""

    def __init__(self, server: LeaseServer, folder: Path, stack: AsyncExitStack) -> None:
        self.server = server
        self.clock = ManualClock()
        self._folder = folder
        self._stack = stack

    def provider(self, namespace: str | None = "default", **options: Any) -> KubernetesProvider:
        given = {"kubeconfig": self.server.kubeconfig(self._folder), "clock": self.clock}
        return KubernetesProvider(namespace, **given | options)

    async def store(self, namespace: str | None = "default", **options: Any) -> KubernetesStore:
        store = self.provider(namespace, **options)._store()
        await store.open()
        self._stack.push_async_callback(store.close)
        return store

    def lease(self, key: str = KEY, prefix: str = "") -> Lease:
        """What the server keeps."""
        return self.server.leases.get(("default", Names(prefix).lease(key)))

    def record(self, key: str = KEY) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.lease(key)["metadata"]["annotations"][RECORD])
        return found

    def put(self, lease: Lease) -> None:
        """Change it as somebody else."""
        self.server.leases.replace(("default", lease["metadata"]["name"]), lease)


@asynccontextmanager
async def a_site(folder: Path, token: str | None = None) -> AsyncIterator[Site]:
    async with LeaseServer(token) as server, AsyncExitStack() as stack:
        yield Site(server, folder, stack)


async def answer(store: Store, command: Command, key: str = KEY) -> Answer:
    (found,) = await store.apply([Ask(key, command, CLAIM)])
    return found


async def ask(store: Store, command: Command, key: str = KEY) -> Reply:
    found = await answer(store, command, key)
    assert isinstance(found, Reply), found
    return found


class Ear:
    """What one store's listener heard. `all_` counts how often everybody was woken."""

    def __init__(self) -> None:
        self.heard: list[Wake] = []
        self.all_ = 0
        self._news = asyncio.Event()

    def __call__(self, wake: Wake | None) -> None:
        if wake:
            self.heard.append(wake)
        else:
            self.all_ += 1
        self._news.set()

    def now(self, key: str = KEY) -> list[str]:
        """The seats told to ask at once."""
        return [wake.seat for wake in self.heard if wake.key == key and not wake.after]

    async def hears(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not true():
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def listening(store: Store) -> AsyncIterator[Ear]:
    ear = Ear()
    listener = asyncio.create_task(store.listen(ear))
    try:
        await ear.hears(lambda: ear.all_)
        yield ear
    finally:
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)


async def poke(holder: Store, waiter: Store, ear: Ear) -> None:
    """Release a lock that somebody else waits for, and see him told."""
    key, seat = f"lock:poke-{next(_numbers)}", f"{waiter.channel}/w"
    await ask(holder, write("there"), key)
    await ask(waiter, write("here", seat), key)
    await ask(holder, Release("there"), key)
    await ear.hears(lambda: ear.now(key))
    assert ear.now(key) == [seat]


def write(token: str, seat: str = "", ttl: int = LEASE) -> Acquire:
    return Acquire(token, Mode.WRITE, ttl, seat)


def read(token: str, seat: str = "", ttl: int = LEASE) -> Acquire:
    return Acquire(token, Mode.READ, ttl, seat)


def calls(server: LeaseServer, since: int) -> Sequence[str]:
    return server.calls[since:]
