"""The few calls on Leases that are needed, each bounded in time, each failure told by what may have happened."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from typing import Any

try:
    import aiohttp
except ImportError as missing:
    raise ImportError("KubernetesProvider needs aiohttp: pip install grelmicro-fastapi[kubernetes]") from missing

from grelmicro_fastapi.errors import BackendError, SettingsValidationError
from grelmicro_fastapi.providers.kubernetes_errors import (
    ConflictError,
    DoubtError,
    ExpiredError,
    ForbiddenError,
    certain,
)
from grelmicro_fastapi.providers.kubernetes_line import Line
from grelmicro_fastapi.providers.kubernetes_names import Lease, part

MANAGER = "grelmicro"
_KIND = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
_PAGE = 500
_PATIENCE = 2.0
"""Seconds that an overloaded API server is given, in all, before it is an error."""


class LeaseApi:
    """Leases of one namespace. `timeout` is how many seconds one call may take."""

    def __init__(self, line: Line, timeout: float) -> None:
        self._line = line
        self._timeout = timeout
        self.calls = 0
        """Requests sent so far."""

    async def get(self, name: str) -> Lease | None:
        """Read one, as it is now and not as some cache remembers it."""
        return await self._call("GET", f"/{name}", absent=True) or None

    async def create(self, lease: Lease) -> Lease:
        """Create one. Raises `ConflictError` if there is one of that name."""
        return await self._call("POST", "", lease, {"fieldManager": MANAGER})

    async def replace(self, lease: Lease) -> Lease:
        """Replace the one with this uid and resourceVersion. Raises `ConflictError` if it is that no more."""
        return await self._call("PUT", f"/{lease['metadata']['name']}", lease, {"fieldManager": MANAGER})

    async def delete(self, lease: Lease) -> None:
        """Delete the one with this uid and resourceVersion. Raises `ConflictError` if it is that no more."""
        meta = lease["metadata"]
        exactly = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": exactly}
        await self._call("DELETE", f"/{meta['name']}", body, absent=True)

    async def list(self, selector: str) -> tuple[list[Lease], str]:
        """Read all with those labels, and return them with the version to watch from."""
        found: list[Lease] = []
        more = ""
        while True:
            query = {"labelSelector": selector, "limit": str(_PAGE), "continue": more}
            page = await self._call("GET", "", None, query)
            # In a list they do not say what they are, and one that is written must.
            found += [_KIND | item for item in page.get("items") or ()]
            more = page["metadata"].get("continue") or ""
            if not more:
                return found, page["metadata"]["resourceVersion"]

    async def watch(self, selector: str, version: str, seconds: float) -> AsyncIterator[tuple[str, Lease]]:
        """Yield kind and object of each change since that version, for so many seconds.

        Ends early if the API server ends it. Raises `ExpiredError` if the version is too old.
        """
        query = {"watch": "true", "labelSelector": selector, "resourceVersion": version}
        query |= {"allowWatchBookmarks": "true", "timeoutSeconds": str(math.ceil(seconds))}
        silence = aiohttp.ClientTimeout(sock_connect=self._timeout, sock_read=seconds + 10)
        try:
            response = await self._send("GET", "", None, query, silence)
            async with response:
                if response.status != 200:
                    raise self._failure("GET", response.status, _parsed(await response.read()), {})
                async for line in response.content:
                    if line.strip():
                        yield self._event(_parsed(line))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # A line that is too long is a ValueError.
            raise certain(f"the watch of Leases broke ({type(error).__name__})") from None

    def _event(self, event: dict[str, Any]) -> tuple[str, Lease]:
        kind, thing = event.get("type"), part(event, "object")
        if not isinstance(kind, str):
            raise certain("the watch of Leases sent what is no event")
        if kind == "ERROR":
            raise self._failure("GET", thing.get("code", 500), thing, {})
        return kind, thing

    async def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        query: dict[str, str] | None = None,
        *,
        absent: bool = False,
    ) -> dict[str, Any]:
        """Send, once more if our token was replaced meanwhile, and again while the API server asks for patience.

        With `absent`, what is not there is an empty answer and no error.
        """
        query = {name: value for name, value in (query or {}).items() if value}
        # The API server should say that it was too slow before we have to guess it.
        query["timeout"] = f"{self._timeout * 900:.0f}ms"
        known, waited = False, 0.0
        while True:
            status, answer, headers = await self._exchange(method, path, body, query)
            if status == 401 and not known:
                known = True
                await self._introduce()
            elif status == 429 and waited < _PATIENCE:
                pause = min(max(_seconds(headers.get("Retry-After")), 0.02), _PATIENCE)
                waited += pause
                await asyncio.sleep(pause)
            elif status == 404 and absent:
                return {}
            elif status < 300:
                if method != "DELETE" and "metadata" not in answer:
                    raise _in_doubt(method, "the API server answered with something that is no Lease")
                return answer
            else:
                raise self._failure(method, status, answer, headers)

    async def _exchange(
        self, method: str, path: str, body: dict[str, Any] | None, query: dict[str, str]
    ) -> tuple[int, dict[str, Any], Any]:
        try:
            response = await self._send(method, path, body, query, aiohttp.ClientTimeout(total=self._timeout))
            async with response:
                return response.status, _parsed(await response.read()), response.headers
        except aiohttp.ClientConnectorError as error:
            raise certain(f"the API server cannot be reached ({type(error).__name__})") from None
        except TimeoutError:
            raise _in_doubt(method, f"the API server did not answer within {self._timeout:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise _in_doubt(method, f"the connection to the API server broke ({type(error).__name__})") from None

    async def _send(
        self, method: str, path: str, body: dict[str, Any] | None, query: dict[str, str], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        if not self._line.opened:
            raise certain("the Kubernetes store is closed")
        self.calls += 1
        where = f"/apis/coordination.k8s.io/v1/namespaces/{self._line.namespace}/leases{path}"
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json", "Content-Type": "application/json", "User-Agent": MANAGER}
        response: aiohttp.ClientResponse = await self._line.request(
            method, where, headers=headers, params=query, data=data, timeout=timeout, allow_redirects=False
        )
        return response

    async def _introduce(self) -> None:
        try:
            await self._line.introduce()
        except SettingsValidationError as error:
            raise certain(str(error)) from None

    def _failure(self, method: str, status: int, answer: dict[str, Any], headers: Any) -> BackendError:
        namespace, reason = self._line.namespace, answer.get("reason") or ""
        verb = {"POST": "create", "PUT": "update", "DELETE": "delete"}.get(method, "get, list or watch")
        causes = part(answer, "details").get("causes") or ()
        if any(cause.get("reason") == "NamespaceTerminating" for cause in causes):
            return certain(f"the namespace {namespace!r} is being deleted: no Lease can be created in it")
        match status:
            case 401:
                return certain("the API server does not know us (401): the token has expired, or is wrong")
            case 403:
                return ForbiddenError(f"we may not {verb} Leases in the namespace {namespace!r} (403): grant the Role")
            case 404:
                return certain(f"there is no namespace {namespace!r} (404)")
            case 409:
                return ConflictError("somebody else changed the Lease meanwhile (409)")
            case 410:
                return ExpiredError("the API server does not remember that far back (410)")
            case 429:
                return certain("the API server is overloaded (429)")
            case _ if 400 <= status < 500:
                return certain(f"the API server refuses the request ({status} {reason})".replace(" )", ")"))
            case _:
                return _in_doubt(method, f"the API server failed ({status} {reason})".replace(" )", ")"))


def _in_doubt(method: str, message: str) -> BackendError:
    return certain(message) if method == "GET" else DoubtError(message)


def _parsed(body: bytes) -> dict[str, Any]:
    """The object in a body. Proxies answer with pages, and an overloaded server with a word."""
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType] # JSON has no types


def _seconds(header: str | None) -> float:
    try:
        return float(header or 1)
    except ValueError:
        return 1.0
