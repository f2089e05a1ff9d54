"""What the Redis and the Valkey provider have in common: everything but the library."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from inspect import iscoroutinefunction
from typing import Any, ClassVar, Protocol, Self, cast

from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.coordination.store import Scope
from grelmicro_fastapi.errors import SettingsValidationError
from grelmicro_fastapi.providers.base import Provider
from grelmicro_fastapi.providers.redis_address import Address, find
from grelmicro_fastapi.providers.redis_driver import Connection, Driver, Pool
from grelmicro_fastapi.providers.redis_node import Dial, Node
from grelmicro_fastapi.providers.redis_sentinel import dial
from grelmicro_fastapi.providers.redis_site import Cluster, OneServer
from grelmicro_fastapi.providers.redis_store import RedisStore
from grelmicro_fastapi.settings import seconds, text, whole


class ServerClient(Protocol):
    """What is needed of a client of one server, or of one that a Sentinel gave."""

    @property
    def connection_pool(self) -> Pool:
        """How it connects."""
        ...


class ClusterClient(Protocol):
    """What is needed of a cluster's client."""

    @property
    def nodes_manager(self) -> Any:
        """Which servers it knows. Each is a recipe for connections to it."""
        ...


class RedisLikeProvider(Provider):
    """Keeps states on a server that speaks Redis's protocol, or on a cluster of them."""

    scope = Scope.CLUSTER
    driver: ClassVar[Driver]

    def __init__(
        self,
        url: str | None = None,
        *,
        host: str | None = None,
        port: int | None = None,
        db: int | None = None,
        username: str | None = None,
        password: str | None = None,
        prefix: str = "",
        replicas: int = 0,
        connect_timeout: float = 2.0,
        operation_timeout: float = 5.0,
        client: ServerClient | ClusterClient | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(clock=clock)
        text("prefix=", prefix)
        whole("replicas=", replicas)
        self._prefix, self._replicas = prefix, replicas
        self._connecting = seconds("connect_timeout=", connect_timeout, least=0.001)
        self._operation = seconds("operation_timeout=", operation_timeout, least=0.001)
        self._client = client
        self._address: Address | None = None
        if client is None:
            self._address = find(self.name, url, host=host, port=port, db=db, username=username, password=password)
            # What the library cannot read it says here, not when the first lock is taken.
            self._pool(self._address)

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "", clock: Clock | None = None) -> Self:
        """Use the servers that a URL names."""
        return cls(url, prefix=prefix, clock=clock)

    @classmethod
    def from_client(
        cls,
        client: ServerClient | ClusterClient,
        *,
        prefix: str = "",
        replicas: int = 0,
        connect_timeout: float = 2.0,
        operation_timeout: float = 5.0,
        clock: Clock | None = None,
    ) -> Self:
        """Connect as this client does, wherever it does, a Sentinel's or a cluster's included.

        The client is asked how, and never used for locks nor closed: it may send a command twice.
        """
        _check(client, cls.__name__, cls.name)
        return cls(
            prefix=prefix,
            replicas=replicas,
            connect_timeout=connect_timeout,
            operation_timeout=operation_timeout,
            client=client,
            clock=clock,
        )

    def __repr__(self) -> str:
        where = self._address or "from_client"
        return f"{type(self).__name__}({where}, prefix={self._prefix!r})"

    def _store(self) -> RedisStore:
        return self._store_on(self._site())

    def _store_on(self, site: OneServer | Cluster, now: Callable[[], int] | None = None) -> RedisStore:
        return RedisStore(self.driver, site, prefix=self._prefix, now=now)

    def _site(self) -> OneServer | Cluster:
        """The deployment, for the running loop."""
        client, address = self._client, self._address
        if address is not None:
            return self._at(address, self._pool(address))
        if hasattr(client, "nodes_manager"):
            servers = cast("ClusterClient", client).nodes_manager
            nodes = [*servers.nodes_cache.values(), *servers.startup_nodes.values()]
            return self._cluster([(node.host, int(node.port)) for node in nodes], nodes[0])
        return self._one(_direct(self.driver.recipe(cast("ServerClient", client).connection_pool)))

    def _at(self, address: Address, pool: Pool) -> OneServer | Cluster:
        driver = self.driver
        if address.kind == "cluster":
            return self._cluster(address.hosts, pool)
        if address.kind == "one":
            return self._one(_direct(driver.recipe(pool)))
        # Sentinels have no databases, and credentials of their own.
        theirs: dict[str, object] = {"db": 0, "username": None, "password": None, **address.sentinel}
        sentinels = [_direct(driver.recipe(pool, host=host, port=port, **theirs)) for host, port in address.hosts]
        return self._one(
            dial(driver, address.service, sentinels, lambda host, port: driver.recipe(pool, host=host, port=port)())
        )

    def _one(self, dial: Dial) -> OneServer:
        return OneServer(Node(self.driver, dial, self._connecting, self._operation, self._replicas))

    def _cluster(self, seeds: Sequence[tuple[str, int]], pool: Pool) -> Cluster:
        def connect(host: str, port: int) -> Dial:
            return _direct(self.driver.recipe(pool, host=host, port=port))

        return Cluster(self.driver, seeds, connect, self._connecting, self._operation, self._replicas)

    @abstractmethod
    def _pool(self, address: Address) -> Pool:
        """A pool for that address, not connected."""


def _check(client: object, provider: str, library: str) -> None:
    """A synchronous client has the same parts, but nobody can wait for its connections."""
    wanted = f"{provider}.from_client takes a client of {library}.asyncio"
    if servers := getattr(client, "nodes_manager", None):
        recipe = next(iter(servers.startup_nodes.values()), None)
    elif (recipe := getattr(client, "connection_pool", None)) is None:
        raise SettingsValidationError(f"{wanted}, and no {type(client).__name__}: {provider}(url) takes a URL")
    make = getattr(recipe, "connection_class", None)
    # Of what is no class nothing can be said before it is called.
    if make is None or (isinstance(make, type) and not iscoroutinefunction(getattr(make, "connect", None))):
        raise SettingsValidationError(f"{wanted}, and not a synchronous one")


def _direct(make: Callable[[], Connection]) -> Dial:
    async def dial() -> Connection:
        return make()

    return dial
