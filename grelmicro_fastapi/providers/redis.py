"""Locks in Redis: for services of many processes on many hosts."""

from typing import Any, cast

try:
    from redis import exceptions
    from redis.asyncio import ConnectionPool
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
except ImportError as missing:
    raise ImportError("the Redis driver is not installed: pip install grelmicro-fastapi[redis]") from missing

from grelmicro_fastapi.errors import SettingsValidationError
from grelmicro_fastapi.providers.redis_address import Address
from grelmicro_fastapi.providers.redis_driver import Driver, Pool, codes
from grelmicro_fastapi.providers.redis_provider import RedisLikeProvider

_DRIVER = Driver(
    name="redis",
    failures=(exceptions.RedisError,),
    answers=exceptions.ResponseError,
    codes=codes(exceptions),
    never=Retry(NoBackoff(), 0),
)


class RedisProvider(RedisLikeProvider):
    """Keeps states in Redis. Its scope is `Scope.CLUSTER`: every process that reaches the server.

    `url` is such as `redis://:password@host:6379/0`, `rediss://` for TLS, `unix:///path`,
    `redis+sentinel://host:26379,host:26379/service` or `redis+cluster://host:6379,host:6379`. Without it, `host=` or
    the variables REDIS_URL or REDIS_HOST, _PORT, _DB, _USERNAME and _PASSWORD say where.

    `prefix` goes before every key and channel. With `replicas=1` a command counts as done only when that many
    replicas have it too: slower, but a failover then loses fewer locks. A connection that is not made within
    `connect_timeout` seconds, or a command that is not answered within `operation_timeout`, is a `BackendError`.

    Raises `SettingsValidationError` for an address that is missing or wrong; its message never holds the address.
    """

    name = "redis"
    driver = _DRIVER

    def _pool(self, address: Address) -> Pool:
        try:
            # The annotations of `from_url` are incomplete.
            return cast("Pool", cast("Any", ConnectionPool).from_url(address.url))
        except (ValueError, TypeError):
            return _unreadable()


def _unreadable() -> Pool:
    # Not where it is caught: the error that the library raises may hold the URL.
    raise SettingsValidationError("the redis URL has an option whose value cannot be read")
