"""Redis and Valkey over TLS, on a server that speaks it: Debian's does, those in wheels do not."""

import asyncio
from collections.abc import Callable

import pytest

from grelmicro_fastapi.coordination import Lock, ReadWriteLock
from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers.redis import RedisProvider
from grelmicro_fastapi.providers.redis_provider import RedisLikeProvider
from grelmicro_fastapi.providers.valkey import ValkeyProvider
from tests.servers.redis import Encrypted, redis_server

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(not redis_server(), reason="there is no redis-server on PATH")]

both = pytest.mark.parametrize(("provider", "scheme"), [(RedisProvider, "rediss"), (ValkeyProvider, "valkeys")])


@both
async def test_processes_take_turns_over_tls(
    provider: Callable[[str], RedisLikeProvider], scheme: str, redis_tls: Encrypted
) -> None:
    tokens: list[int] = []
    async with provider(redis_tls.url(scheme)) as one, provider(redis_tls.url(scheme)) as two:

        async def write(backend: RedisLikeProvider) -> None:
            for _ in range(5):
                async with ReadWriteLock(f"shared {scheme}", backend=backend).write as guard:
                    tokens.append(guard.fencing_token)
                    await asyncio.sleep(0)
                    assert tokens[-1] == guard.fencing_token, "somebody else wrote meanwhile"

        await asyncio.gather(*[write(backend) for backend in (one, two) for _ in range(10)])
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 100


@both
async def test_a_server_that_hangs_up_is_asked_again_over_tls(
    provider: Callable[[str], RedisLikeProvider], scheme: str, redis_tls: Encrypted
) -> None:
    async with provider(redis_tls.url(scheme)) as ours:
        lock = Lock(f"again {scheme}", backend=ours)
        async with lock:
            pass
        with redis_tls.server.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            client.execute_command("CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes")
        # What was idle is lost, so a first try may say so.
        for _ in range(3):
            try:
                async with lock as handle:
                    assert handle.fencing_token > 1
                    break
            except BackendError:
                continue
        else:
            pytest.fail("the store did not recover")


async def test_a_certificate_that_nobody_trusts_is_named_and_refused(redis_tls: Encrypted) -> None:
    async with RedisProvider(f"rediss://127.0.0.1:{redis_tls.port}") as ours:
        with pytest.raises(BackendError, match="certificate verify failed"):
            await Lock("refused", backend=ours).acquire_nowait()


async def test_a_server_that_speaks_no_tls_is_refused(redis_tls: Encrypted) -> None:
    async with RedisProvider(f"rediss://127.0.0.1:{redis_tls.server.port}") as ours:
        with pytest.raises(BackendError, match="gave no answer"):
            await Lock("refused", backend=ours).acquire_nowait()
