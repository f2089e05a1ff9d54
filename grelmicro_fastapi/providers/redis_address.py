"""Where the servers are: from a URL, from keywords, from the environment. Shared by Redis and Valkey."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qsl, quote, unquote, urlencode

from grelmicro_fastapi.errors import SettingsValidationError
from grelmicro_fastapi.settings import read_env, text, whole

Kind = Literal["one", "sentinel", "cluster"]

_URL = re.compile(
    r"(?P<scheme>[a-z]+)(\+(?P<kind>sentinel|cluster))?://((?P<user>[^:@/]*)(:(?P<password>[^@]*))?@)?"
    r"(?P<hosts>[^/?]*)(/(?P<path>[^?]*))?(\?(?P<query>.*))?",
    re.IGNORECASE,
)
_HOST = re.compile(r"(?P<host>\[[^\]]+\]|[^:]*)(:(?P<port>\d+))?")


@dataclass(frozen=True)
class Address:
    """Where the servers are. Its text holds no credentials."""

    kind: Kind
    hosts: tuple[tuple[str, int], ...]
    url: str = field(repr=False)
    """A plain URL that the library reads: the first host, the credentials, the database and the options."""
    service: str = ""
    sentinel: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """The credentials that the Sentinels themselves want."""


def find(
    library: str,
    url: str | None,
    *,
    host: str | None,
    port: int | None,
    db: int | None,
    username: str | None,
    password: str | None,
) -> Address:
    """The address that the keywords give, or else the environment: `{LIBRARY}_URL`, or `_HOST`, `_PORT`, `_DB`.

    A username or password beside a URL is for a URL that has none. Raises `SettingsValidationError`, which never
    holds a value.
    """
    env = library.upper()
    source = "url="
    for keyword, given in (("url=", url), ("host=", host), ("username=", username), ("password=", password)):
        text(keyword, given, needed=False)
    if port is not None:
        whole("port=", port, least=1, most=65_535)
    if db is not None:
        whole("db=", db)
    if url is None and host is None:
        url, host, source = read_env(f"{env}_URL"), read_env(f"{env}_HOST"), f"{env}_URL"
        # Kubernetes sets REDIS_PORT=tcp://... for a service named "redis", whether anybody wants it or not.
        port = port if port is not None else _number(env, "PORT", ignore="tcp://")
        db = db if db is not None else _number(env, "DB")
        username = username or read_env(f"{env}_USERNAME")
        password = password or read_env(f"{env}_PASSWORD")
        if url and host:
            raise SettingsValidationError(f"{env}_URL and {env}_HOST are both set: which one is it?")
    elif url is not None and (host is not None or port is not None):
        raise SettingsValidationError("url= and host= or port= are both given: which one is it?")
    if not url and not host:
        raise SettingsValidationError(f"{library} needs an address: pass url= or host=, or set {env}_URL or {env}_HOST")
    if url:
        return parse(library, url, source, db=db, username=username, password=password)
    where = f"{host}:{port or 6379}" if ":" not in str(host) else f"[{host}]:{port or 6379}"
    return parse(library, f"{library}://{where}", "host=", db=db, username=username, password=password)


def parse(
    library: str,
    url: str,
    source: str = "url=",
    *,
    db: int | None = None,
    username: str | None = None,
    password: str | None = None,
) -> Address:
    """Read a URL. Raises `SettingsValidationError`, which names `source` and never the URL."""
    if url.startswith("unix://"):
        return Address("one", (), _with(url, {"db": db, "username": username, "password": password}))
    found = _URL.fullmatch(url)
    scheme = found["scheme"].lower() if found else ""
    if not found or scheme not in {"redis", "rediss", "valkey", "valkeys"}:
        raise SettingsValidationError(
            f"{source}: not a URL such as {library}://host:6379/0, {library}s:// or rediss:// for TLS, unix:///path, "
            f"{library}+sentinel://host:26379/service or {library}+cluster://host:6379,host:6379"
        )
    kind: Kind = "one"
    if found["kind"]:
        kind = "sentinel" if found["kind"].lower() == "sentinel" else "cluster"
    hosts = [_host(part, 26_379 if kind == "sentinel" else 6_379, source) for part in found["hosts"].split(",")]
    if kind == "one" and len(hosts) > 1:
        raise SettingsValidationError(f"{source}: several hosts are for {library}+sentinel:// or {library}+cluster://")
    path = unquote(found["path"] or "")
    service, _, path = path.partition("/") if kind == "sentinel" else ("", "", path)
    if kind == "sentinel" and not service:
        raise SettingsValidationError(f"{source}: a Sentinel URL ends with the name of the service, such as /mymaster")
    if path and not path.isdigit():
        raise SettingsValidationError(f"{source}: the database must be a number")
    database = int(path or 0) if db is None else db
    if kind == "cluster" and database:
        raise SettingsValidationError(f"{source}: a cluster has only database 0")
    options = dict(parse_qsl(found["query"] or ""))
    sentinel = {
        name.removeprefix("sentinel_"): options.pop(name) for name in [*options] if name.startswith("sentinel_")
    }
    user, secret = found["user"] or "", found["password"] or ""
    credentials = ""
    if user or secret or username or password:
        credentials = (user or quote(username or "", "")) + ":" + (secret or quote(password or "", "")) + "@"
    name, port = hosts[0]
    where = f"[{name}]" if ":" in name else name
    # Both libraries read the scheme of the other only in part: the plain one is read by both.
    plain = "rediss" if scheme in {"rediss", "valkeys"} else "redis"
    base = f"{plain}://{credentials}{where}:{port}/{database}"
    return Address(kind, tuple(hosts), f"{base}?{urlencode(options)}" if options else base, service, sentinel)


def _host(part: str, port: int, source: str) -> tuple[str, int]:
    found = _HOST.fullmatch(part)
    if not found:
        raise SettingsValidationError(f"{source}: a host is written as name:port or [address]:port")
    return found["host"].strip("[]") or "localhost", int(found["port"] or port)


def _with(url: str, more: Mapping[str, object]) -> str:
    given = {name: str(value) for name, value in more.items() if value is not None and f"{name}=" not in url}
    return f"{url}{'&' if '?' in url else '?'}{urlencode(given)}" if given else url


def _number(env: str, field: str, ignore: str = "\0") -> int | None:
    value = read_env(f"{env}_{field}")
    if value is None or value.startswith(ignore):
        return None
    if not value.isdecimal():
        raise SettingsValidationError(f"{env}_{field} must be a number")
    return int(value)
