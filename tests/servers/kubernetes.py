"""A stand-in for the part of a Kubernetes API server that keeps Leases, with faults to order.

`python -m tests.servers.kubernetes PORT` runs one by itself. Where `GREL_TEST_KUBECONFIG` names a kubeconfig, the tests
that need no faults run against that API server instead, in the namespace `GREL_TEST_NAMESPACE` (else "default"), in
which they delete the Leases that this library manages.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
from aiohttp import web

from grelmicro_fastapi.providers.kubernetes_line import Line
from tests.servers.kubernetes_leases import Lease, Leases, RefusalError
from tests.servers.postgres import free_port, wait_until_it_listens

BASE = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"

Apply = Callable[[], Awaitable[web.StreamResponse]]
Fault = Callable[[web.Request, Apply], Awaitable[web.StreamResponse]]
"""What to do with a request instead of applying and answering it."""


@dataclass
class _Order:
    fault: Fault
    methods: tuple[str, ...]
    times: float


class LeaseServer:
    """`async with LeaseServer() as server`: on a port of its own, on the running loop."""

    def __init__(self, token: str | None = None) -> None:
        self.leases = Leases()
        self.token = token
        """Whoever does not bring it is not let in."""
        self.calls: list[str] = []
        """The method of each request, "WATCH" for watches, but for those with a wrong token."""
        self.url = ""
        self._faults: list[_Order] = []
        self._hanging = asyncio.Event()
        self._news = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._watches: list[web.Request] = []

    async def start(self, port: int = 0) -> None:
        app = web.Application(client_max_size=3 << 20, middlewares=[_refusals, self._guarded])
        app.add_routes(
            [
                web.get(BASE, self._list),
                web.post(BASE, self._create),
                web.delete(BASE, self._clear),
                web.get(BASE + "/{name}", self._get),
                web.put(BASE + "/{name}", self._replace),
                web.patch(BASE + "/{name}", self._patch),
                web.delete(BASE + "/{name}", self._delete),
            ]
        )
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        self._hanging.set()
        self.cut_watches()
        if self._runner:
            await self._runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    def misbehave(self, fault: Fault, *methods: str, times: float = 1) -> None:
        """Do that with the next requests of those methods (of all but watches, if none is named)."""
        self._faults.append(_Order(fault, methods or ("GET", "POST", "PUT", "DELETE"), times))

    def behave(self) -> None:
        """From now on."""
        self._faults.clear()

    async def called(self, method: str, times: int) -> None:
        """Wait until that was asked so many times."""
        async with asyncio.timeout(10):
            while self.calls.count(method) < times:
                self._news.clear()
                await self._news.wait()

    def cut_watches(self) -> None:
        """End every watch as a connection that breaks."""
        for request in self._watches:
            if request.transport:
                request.transport.abort()

    @property
    def watched(self) -> int:
        """How many watches there are."""
        return len(self._watches)

    async def hang(self, request: web.Request, apply: Apply) -> web.StreamResponse:
        """A fault: it never arrives, and nobody is told."""
        await self._hanging.wait()
        raise asyncio.CancelledError

    async def apply_and_hang(self, request: web.Request, apply: Apply) -> web.StreamResponse:
        """A fault: it is applied, and nobody is told."""
        await apply()
        return await self.hang(request, apply)

    def kubeconfig(self, folder: Path, token: str | None = None) -> str:
        """Write one that leads here."""
        path = folder / "kubeconfig"
        path.write_text(kubeconfig(self.url, token or self.token))
        return str(path)

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            raise RefusalError(401, "Unauthorized", "Unauthorized")
        method = "WATCH" if request.query.get("watch") else request.method
        self.calls.append(method)
        self._news.set()

        async def apply() -> web.StreamResponse:
            answer: web.StreamResponse = await handler(request)
            return answer

        for order in self._faults:
            if method in order.methods and order.times > 0:
                order.times -= 1
                return await order.fault(request, apply)
        return await apply()

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self.leases.get(_key(request)))

    async def _create(self, request: web.Request) -> web.Response:
        strict = request.query.get("fieldValidation") == "Strict"
        lease = self.leases.create(request.match_info["namespace"], await _body(request), strict)
        return web.json_response(lease, status=201)

    async def _replace(self, request: web.Request) -> web.Response:
        key, body = _key(request), await _body(request)
        status = 200 if key in self.leases.kept else 201
        return web.json_response(self.leases.replace(key, body), status=status)

    async def _patch(self, request: web.Request) -> web.Response:
        return web.json_response(self.leases.patch(_key(request), await _body(request), request.content_type))

    async def _delete(self, request: web.Request) -> web.Response:
        options = await _body(request) if request.body_exists else {}
        lease = self.leases.delete(_key(request), options.get("preconditions") or {})
        details = {"name": lease["metadata"]["name"], "kind": "leases", "uid": lease["metadata"]["uid"]}
        return web.json_response({"kind": "Status", "apiVersion": "v1", "status": "Success", "details": details})

    async def _clear(self, request: web.Request) -> web.Response:
        for lease in self._selected(request):
            self.leases.delete((lease["metadata"]["namespace"], lease["metadata"]["name"]), {})
        return web.json_response({"kind": "LeaseList", "metadata": {}, "items": []})

    def _selected(self, request: web.Request) -> list[Lease]:
        query = request.query
        selects = self.leases.find(
            request.match_info["namespace"], query.get("labelSelector", ""), query.get("fieldSelector", "")
        )
        return sorted(filter(selects, self.leases.kept.values()), key=lambda lease: lease["metadata"]["name"])

    async def _list(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            return await self._watch(request)
        found = self._selected(request)
        meta = {"resourceVersion": str(self.leases.version)}
        start, limit = int(request.query.get("continue") or 0), int(request.query.get("limit") or len(found) or 1)
        if len(found) > start + limit:
            meta["continue"] = str(start + limit)
        # In a list, objects do not say what kind they are.
        items = [{"metadata": lease["metadata"], "spec": lease["spec"]} for lease in found[start : start + limit]]
        return web.json_response({"kind": "LeaseList", "metadata": meta, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        leases, query = self.leases, request.query
        selects = leases.find(
            request.match_info["namespace"], query.get("labelSelector", ""), query.get("fieldSelector", "")
        )
        since = int(query.get("resourceVersion") or 0)
        news: asyncio.Queue[tuple[int, str, Lease]] = asyncio.Queue()
        old = [(0, "ADDED", lease) for lease in leases.kept.values()]
        for change in [change for change in leases.history if change[0] > since] if since else old:
            news.put_nowait(change)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})

        async def send(kind: str, thing: Lease) -> None:
            await response.write(json.dumps({"type": kind, "object": thing}).encode() + b"\n")

        def tell(*change: Any) -> None:
            news.put_nowait(change)

        leases.tell.append(tell)
        self._watches.append(request)
        try:
            await response.prepare(request)
            if since and since < leases.oldest:
                await send("ERROR", RefusalError(410, "Expired", "too old resource version").body)
                return response
            async with asyncio.timeout(float(query.get("timeoutSeconds") or 1800)):
                while True:
                    _, kind, lease = await news.get()
                    if selects(lease):
                        await send(kind, lease)
        except TimeoutError:
            if query.get("allowWatchBookmarks") == "true":
                await send("BOOKMARK", {"kind": "Lease", "metadata": {"resourceVersion": str(leases.version)}})
            return response
        finally:
            self._watches.remove(request)
            leases.tell.remove(tell)


@web.middleware
async def _refusals(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        answer: web.StreamResponse = await handler(request)
    except RefusalError as refusal:
        return web.json_response(refusal.body, status=refusal.status)
    return answer


def _key(request: web.Request) -> tuple[str, str]:
    return request.match_info["namespace"], request.match_info["name"]


async def _body(request: web.Request) -> Any:
    try:
        return await request.json()
    except web.HTTPRequestEntityTooLarge:
        raise RefusalError(413, "RequestEntityTooLarge", "Request entity too large: limit is 3145728") from None
    except ValueError as error:
        raise RefusalError(400, "BadRequest", f"couldn't get version/kind; json parse error: {error}") from None


def says(status: int, text: str = "", **headers: str) -> Fault:
    """A fault: answer so, and apply nothing."""

    async def fault(request: web.Request, apply: Apply) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, text=text, content_type="text/html", headers=named)

    return fault


async def lose(request: web.Request, apply: Apply) -> web.StreamResponse:
    """A fault: cut the connection, and apply nothing."""
    return _cut(request)


async def apply_and_lose(request: web.Request, apply: Apply) -> web.StreamResponse:
    """A fault: apply it, and cut the connection before answering."""
    await apply()
    return _cut(request)


def _cut(request: web.Request) -> web.StreamResponse:
    assert request.transport
    request.transport.abort()
    return web.Response()


class Late:
    """A fault: the connection breaks, and the request is applied when the test says so."""

    def __init__(self) -> None:
        self._applies: list[Apply] = []

    async def __call__(self, request: web.Request, apply: Apply) -> web.StreamResponse:
        # The body must be here before its connection is gone.
        await request.read()
        self._applies.append(apply)
        return _cut(request)

    async def arrive(self) -> list[int]:
        """Apply all of them, and say what would have been answered."""
        statuses: list[int] = []
        for apply in self._applies:
            try:
                statuses.append((await apply()).status)
            except RefusalError as refusal:
                statuses.append(refusal.status)
        return statuses


def kubeconfig(url: str, token: str | None = None) -> str:
    user = {"token": token} if token else {}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
            "clusters": [{"name": "tests", "cluster": {"server": url}}],
            "users": [{"name": "tests", "user": user}],
        }
    )


@dataclass(frozen=True)
class Cluster:
    """An API server for tests: how to get there, and where to stay."""

    kubeconfig: str
    namespace: str

    @property
    def url(self) -> str:
        """What `provider_from_url` takes."""
        return f"kubernetes://{self.namespace}?kubeconfig={self.kubeconfig}"


async def clear(cluster: Cluster) -> None:
    """Delete every Lease that this library manages there."""
    line = Line(cluster.namespace, cluster.kubeconfig, None)
    await line.open()
    where, which = BASE.format(namespace=cluster.namespace), {"labelSelector": "app.kubernetes.io/managed-by=grelmicro"}
    async with await line.request("DELETE", where, headers={}, params=which) as response:
        assert response.status == 200
    await line.close()


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The API server that `GREL_TEST_KUBECONFIG` names, or a stand-in in a process of its own."""
    if given := os.environ.get("GREL_TEST_KUBECONFIG"):
        yield Cluster(given, os.environ.get("GREL_TEST_NAMESPACE", "default"))
        return
    folder, port = tmp_path_factory.mktemp("kubernetes"), free_port()
    # It ends when we do, for then its input ends.
    command = [sys.executable, "-m", "tests.servers.kubernetes", str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path(__file__).parents[2]) as server:
        wait_until_it_listens(port, server)
        (folder / "kubeconfig").write_text(kubeconfig(f"http://127.0.0.1:{port}"))
        yield Cluster(str(folder / "kubeconfig"), "default")
        assert server.stdin
        server.stdin.close()


async def _serve(port: int) -> None:
    server = LeaseServer()
    await server.start(port)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
