"""A provider for a URL, such as one from the environment."""

from importlib import import_module

from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.errors import SettingsValidationError
from grelmicro_fastapi.providers.base import Provider

_SCHEMES = {
    "memory": "memory.MemoryProvider",
    "sqlite": "sqlite.SqliteProvider",
    "redis": "redis.RedisProvider",
    "rediss": "redis.RedisProvider",
    "unix": "redis.RedisProvider",
    "valkey": "valkey.ValkeyProvider",
    "valkeys": "valkey.ValkeyProvider",
    "postgres": "postgres.PostgresProvider",
    "postgresql": "postgres.PostgresProvider",
    "kubernetes": "kubernetes.KubernetesProvider",
}


def provider_from_url(url: str, *, clock: Clock | None = None) -> Provider:
    """Pick the provider by the URL's scheme; what follows a `+` in the scheme is the provider's own affair.

    Raises `SettingsValidationError` for a scheme that none serves. The message never holds the URL.
    """
    module, _, name = _SCHEMES[_scheme(url)].partition(".")
    provider = getattr(import_module(f"grelmicro_fastapi.providers.{module}"), name)
    made: Provider = provider.from_url(url, clock=clock)
    return made


def _scheme(url: object) -> str:
    if not isinstance(url, str):
        # None, as a rule.
        raise SettingsValidationError(
            f"a URL is text such as redis://localhost, and not {type(url).__name__}: is the variable set that holds it?"
        )
    scheme, colon, _ = url.partition(":")
    scheme = scheme.partition("+")[0].lower()
    if not colon or scheme not in _SCHEMES:
        raise SettingsValidationError(f"no provider serves this URL: its scheme must be one of {', '.join(_SCHEMES)}")
    return scheme
