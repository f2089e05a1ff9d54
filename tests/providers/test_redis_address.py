"""Where Redis and Valkey are found, and that nobody learns the password on the way."""

import logging
from typing import Any

import pytest

from grelmicro_fastapi.errors import SettingsValidationError
from grelmicro_fastapi.providers import provider_from_url
from grelmicro_fastapi.providers.redis import RedisProvider
from grelmicro_fastapi.providers.redis_address import find, parse
from grelmicro_fastapi.providers.valkey import ValkeyProvider

SECRET = "s3cret"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("REDIS", "VALKEY"):
        for field in ("URL", "HOST", "PORT", "DB", "USERNAME", "PASSWORD"):
            monkeypatch.delenv(f"{library}_{field}", raising=False)


def options(provider: RedisProvider | ValkeyProvider) -> dict[str, Any]:
    assert provider._address
    return dict(provider._pool(provider._address).connection_kwargs)


@pytest.mark.parametrize(
    ("url", "kind", "hosts"),
    [
        ("redis://localhost", "one", (("localhost", 6379),)),
        ("redis://user:p@h:1/2", "one", (("h", 1),)),
        ("redis://[::1]:7/0", "one", (("::1", 7),)),
        ("rediss://h", "one", (("h", 6379),)),
        ("valkey://h", "one", (("h", 6379),)),
        ("redis+sentinel://a,b:1/main/3", "sentinel", (("a", 26379), ("b", 1))),
        ("redis+cluster://a,b:1", "cluster", (("a", 6379), ("b", 1))),
    ],
)
def test_a_url_says_which_deployment(url: str, kind: str, hosts: object) -> None:
    address = parse("redis", url)
    assert (address.kind, address.hosts) == (kind, hosts)


def test_a_sentinel_url_has_a_service_a_database_and_two_kinds_of_credentials() -> None:
    provider = RedisProvider("redis+sentinel://app:pw@a/main/3?sentinel_username=watch&sentinel_password=dog")
    assert provider._address
    assert provider._address.service == "main"
    assert provider._address.sentinel == {"username": "watch", "password": "dog"}
    kept = options(provider)
    assert (kept["username"], kept["password"], kept["db"]) == ("app", "pw", 3)


async def _dialled(provider: RedisProvider) -> str:
    return type(await provider._site().node._dial()).__name__  # type: ignore[union-attr]  # not a cluster


@pytest.mark.anyio
async def test_tls_and_unix_sockets_are_said_by_the_scheme() -> None:
    assert await _dialled(RedisProvider("rediss://h")) == "SSLConnection"
    assert await _dialled(RedisProvider("redis://h")) == "Connection"
    assert await _dialled(RedisProvider("unix:///tmp/s")) == "UnixDomainSocketConnection"


def test_the_environment_says_where_unless_the_keywords_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://env:1/2")
    monkeypatch.setenv("VALKEY_HOST", "other")
    monkeypatch.setenv("VALKEY_PORT", "5")
    monkeypatch.setenv("VALKEY_DB", "3")
    assert options(RedisProvider())["host"] == "env"
    assert options(RedisProvider("redis://keyword"))["host"] == "keyword"
    kept = options(ValkeyProvider())
    assert (kept["host"], kept["port"], kept["db"]) == ("other", 5, 3)


def test_a_password_in_the_environment_is_not_dropped_beside_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://env")
    monkeypatch.setenv("REDIS_PASSWORD", "p@ss/word:é")
    assert options(RedisProvider())["password"] == "p@ss/word:é"
    # It is for that server, and for no other.
    assert "password" not in options(RedisProvider("redis://elsewhere"))
    monkeypatch.setenv("REDIS_URL", f"redis://:{SECRET}@env")
    assert options(RedisProvider())["password"] == SECRET


def test_what_kubernetes_puts_into_redis_port_is_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_HOST", "h")
    monkeypatch.setenv("REDIS_PORT", "tcp://10.0.0.1:6379")
    assert options(RedisProvider())["port"] == 6379


def test_a_url_and_a_host_together_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsValidationError, match="host="):
        RedisProvider("redis://a", host="b")
    monkeypatch.setenv("REDIS_URL", "redis://a")
    monkeypatch.setenv("REDIS_HOST", "b")
    with pytest.raises(SettingsValidationError, match="REDIS_HOST"):
        RedisProvider()


def test_no_address_is_an_error_that_says_what_to_set() -> None:
    with pytest.raises(SettingsValidationError, match="VALKEY_URL"):
        ValkeyProvider()


@pytest.mark.parametrize(
    "url",
    [
        f"http://:{SECRET}@h",
        f"redis:{SECRET}",
        f"redis://:{SECRET}@a,b",
        f"redis://:{SECRET}@h/not-a-number",
        f"redis://:{SECRET}@h:port",
        f"redis+sentinel://:{SECRET}@h",
        f"redis+cluster://:{SECRET}@h/1",
        f"redis://:{SECRET}@h?socket_timeout=soon",
    ],
)
def test_a_wrong_url_is_an_error_that_does_not_hold_it(url: str) -> None:
    with pytest.raises(SettingsValidationError) as caught:
        RedisProvider(url)
    error: BaseException | None = caught.value
    while error:
        assert SECRET not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_nothing_that_is_shown_holds_the_password(caplog: pytest.LogCaptureFixture) -> None:
    provider = RedisProvider(f"redis://user:{SECRET}@h")
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("grelmicro_fastapi").warning("%r %s %s", provider, provider, provider._address)
    assert SECRET not in caplog.text
    assert SECRET not in repr(
        find("redis", f"redis://:{SECRET}@h", host=None, port=None, db=None, username=None, password=None)
    )


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("redis://h", RedisProvider),
        ("rediss://h", RedisProvider),
        ("redis+cluster://h", RedisProvider),
        ("redis+sentinel://h/main", RedisProvider),
        ("unix:///s", RedisProvider),
        ("valkey://h", ValkeyProvider),
        ("valkeys://h", ValkeyProvider),
        ("valkey+cluster://h", ValkeyProvider),
    ],
)
def test_the_scheme_picks_the_provider(url: str, kind: type) -> None:
    assert type(provider_from_url(url)) is kind


@pytest.mark.parametrize("options", [{"replicas": -1}, {"connect_timeout": 0}, {"operation_timeout": float("inf")}])
def test_options_out_of_bounds_are_errors(options: dict[str, Any]) -> None:
    with pytest.raises(SettingsValidationError, match=next(iter(options))):
        RedisProvider("redis://h", **options)
