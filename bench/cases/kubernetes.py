"""How many calls to a Kubernetes API server an operation costs, counted where they arrive."""

import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from bench.contests import fresh
from bench.row import Row
from grelmicro_fastapi.coordination import ReadWriteLock, WriteGuard
from grelmicro_fastapi.providers.kubernetes import KubernetesProvider
from tests.servers.kubernetes import LeaseServer

Calls = Callable[[LeaseServer, ReadWriteLock], Awaitable[float]]


@asynccontextmanager
async def rows() -> AsyncGenerator[list[Row]]:
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(LeaseServer())
            where = server.kubeconfig(Path(folder))
            provider = await stack.enter_async_context(KubernetesProvider("default", kubeconfig=where))
            measures: list[tuple[str, float, Calls]] = [
                ("acquire a name that is new", 2.0, _acquire),
                ("acquire a name that is known", 1.0, _acquire_again),
                ("renew", 1.0, partial(_ask, WriteGuard.extend)),
                ("release", 1.0, partial(_ask, WriteGuard.release)),
            ]
            yield [
                Row(f"kubernetes: calls to {name}", partial(_run, server, provider, calls), most, kind="alone", unit="")
                for name, most, calls in measures
            ]


async def _run(server: LeaseServer, provider: KubernetesProvider, calls: Calls) -> float:
    return await calls(server, ReadWriteLock(fresh("catalog"), backend=provider))


async def _acquire(server: LeaseServer, lock: ReadWriteLock) -> float:
    before = len(server.calls)
    guard = await lock.write.acquire()
    calls = len(server.calls) - before
    await guard.release()
    return calls


async def _acquire_again(server: LeaseServer, lock: ReadWriteLock) -> float:
    await _acquire(server, lock)
    return await _acquire(server, lock)


async def _ask(ask: Callable[[WriteGuard], Awaitable[None]], server: LeaseServer, lock: ReadWriteLock) -> float:
    guard = await lock.write.acquire()
    before = len(server.calls)
    await ask(guard)
    calls = len(server.calls) - before
    await guard.release()
    return calls
