"""A client of the shop that notes what it asked for, and what it was told."""

import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import httpx

from example_app.demo.history import Outcome, Update

# Refused means that nothing was done. Any other failure leaves the client in doubt.
_REFUSALS = ("lock-contended", "fenced", "shutting-down", "lock-queue-full")
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout)

_LOOKS = 30


class Client:
    """One connection, so one worker at a time: `worker` is its process id, as far as is known."""

    def __init__(self, url: str, *, timeout: float = 30) -> None:
        self._url = url
        self._timeout = timeout
        self._http = self._fresh()
        self.worker: int | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def meet(self, wanted: Callable[[int], bool] | None = None) -> int:
        """Ask the worker at the other end who it is, and look for another, for a while, unless it is `wanted`."""
        for _ in range(_LOOKS):
            try:
                self.worker = int((await self.ask("GET", "/whoami")).json()["pid"])
            except httpx.TransportError:
                # A worker that is ending may hang up: the next connection goes to another.
                if wanted is None:
                    raise
                continue
            if wanted is None or wanted(self.worker):
                break
            await self._http.aclose()
            self._http = self._fresh()
        else:
            return await self.meet()
        return self.worker

    async def increment(self, sku: str) -> Update:
        """Increment a quantity, and note the outcome. Never raises for what a network or a server can do."""
        sent = time.monotonic()
        try:
            answer = await self.ask("POST", f"/stock/{sku}/increment")
        except httpx.TransportError as error:
            never = isinstance(error, _NEVER_SENT)
            return Update(sku, sent, time.monotonic(), Outcome.REFUSED if never else Outcome.UNKNOWN)
        ended = time.monotonic()
        if answer.is_success:
            said = answer.json()
            fields = said["quantity"], said["fencing_token"], said["poisoned"]
            return Update(sku, sent, ended, Outcome.ACKNOWLEDGED, *fields, problem="")
        problem = _kind(answer)
        outcome = Outcome.REFUSED if problem in _REFUSALS else Outcome.UNKNOWN
        return Update(sku, sent, ended, outcome, problem=problem)

    async def quantity(self, sku: str) -> int:
        """Read a quantity."""
        quantity: int = (await self.ask("GET", f"/stock/{sku}")).raise_for_status().json()["quantity"]
        return quantity

    async def catalog(self) -> dict[str, Any]:
        """Read the catalog."""
        catalog: dict[str, Any] = (await self.ask("GET", "/catalog")).raise_for_status().json()
        return catalog

    async def replace(self, rows: list[str]) -> dict[str, Any]:
        """Replace the catalog."""
        replaced: dict[str, Any] = (await self.ask("PUT", "/catalog", json={"rows": rows})).raise_for_status().json()
        return replaced

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send one request. Raises `httpx.TransportError` if no answer comes."""
        try:
            return await self._http.request(method, path, **options)
        except httpx.TransportError:
            # The next request opens a new connection, to whichever worker.
            self.worker = None
            raise

    def _fresh(self) -> httpx.AsyncClient:
        # With a pool of one, the connection of one request is that of the next.
        limits = httpx.Limits(max_connections=1, keepalive_expiry=None)
        return httpx.AsyncClient(base_url=self._url, timeout=self._timeout, limits=limits, verify=False)


class Spread:
    """Spreads clients over the workers: the kernel would give nearly all of them to the worker that wakes first."""

    def __init__(self, clients: int, workers: int) -> None:
        self._most = math.ceil(clients / workers)
        self._clients: dict[Client, int] = {}

    async def settle(self, client: Client) -> int:
        """Connect the client to a worker that has room for it, if one can be found."""
        self._clients.pop(client, None)
        worker = await client.meet(lambda worker: list(self._clients.values()).count(worker) < self._most)
        self._clients[client] = worker
        return worker


def _kind(answer: httpx.Response) -> str:
    """The last word of a problem's type, such as "fenced", or the status of any other answer."""
    if answer.headers.get("content-type") == "application/problem+json":
        return str(answer.json()["type"]).rpartition(":")[2]
    return str(answer.status_code)
