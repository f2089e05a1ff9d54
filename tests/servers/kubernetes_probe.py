"""Asks an API server the questions whose answers this library builds on. The same ones were put to a real server."""

import asyncio
import copy
import io
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import aiohttp

NOW = "2026-11-30T20:13:02.693418Z"
MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"


class Answer(NamedTuple):
    """What became of one question: the status, its reason, and whatever else matters of it."""

    check: str
    status: int
    reason: str | None
    facts: Any = None

    def line(self) -> str:
        return json.dumps(self, ensure_ascii=False)


def lease(name: str, metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    usual = {"holderIdentity": "a", "leaseDurationSeconds": 15, "acquireTime": NOW, "renewTime": NOW}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name} | (metadata or {}),
        "spec": usual | {"leaseTransitions": 0} | spec,
    }


class Probe:
    """Puts the questions in order. `leases` is the URL of a namespace's Leases, "default" in it."""

    def __init__(self, session: aiohttp.ClientSession, leases: str) -> None:
        self._session = session
        self._leases = leases

    async def ask(
        self, method: str, name: str = "", body: Any = None, kind: str = "application/json", **query: str
    ) -> tuple[int, dict[str, Any]]:
        text = body if isinstance(body, str) else json.dumps(body)
        data = None if body is None else io.BytesIO(text.encode())
        url = self._leases + (f"/{name}" if name else "")
        headers = {} if data is None else {"Content-Type": kind}
        async with self._session.request(method, url, data=data, headers=headers, params=query) as response:
            return response.status, json.loads(await response.read())

    async def answers(self) -> AsyncIterator[Answer]:
        for name in ("probe", "probe-race", "probe-0", "probe-1", "probe-2", "probe-v"):
            await self.ask("DELETE", name)
        for part in (self._versions(), self._lists(), self._patches(), self._watches(), self._deletions()):
            async for answer in part:
                yield answer
        async for answer in self._validation():
            yield answer
        async for answer in self._elsewhere():
            yield answer

    async def _versions(self) -> AsyncIterator[Answer]:
        yield _answer("GET what is not there", await self.ask("GET", "probe-none"))
        status, made = await self.ask("POST", body=lease("probe"))
        yield Answer(
            "POST", status, None, sorted({"uid", "resourceVersion", "creationTimestamp"} & {*made["metadata"]})
        )
        yield _answer("POST the same name again", await self.ask("POST", body=lease("probe")))
        status, found = await self.ask("GET", "probe")
        yield Answer("GET", status, None, found["spec"]["renewTime"])
        changed = _changed(found, holderIdentity="b", leaseTransitions=1)
        status, second = await self.ask("PUT", "probe", changed)
        yield Answer("PUT on the version that is there", status, None, _moved(found, second))
        stale = _changed(changed, holderIdentity="c")
        yield _answer("PUT on a version that was there", await self.ask("PUT", "probe", stale))
        unversioned = copy.deepcopy(changed)
        del unversioned["metadata"]["resourceVersion"]
        yield _answer("PUT without a version", await self.ask("PUT", "probe", unversioned))
        status, third = await self.ask("GET", "probe")
        yield Answer("GET after those", status, None, third["spec"]["holderIdentity"])
        shorter = copy.deepcopy(third)
        del shorter["spec"]["leaseTransitions"]
        status, fourth = await self.ask("PUT", "probe", shorter)
        yield Answer("PUT without a field", status, None, fourth["spec"].get("leaseTransitions"))
        status, same = await self.ask("PUT", "probe", fourth)
        yield Answer("PUT of what is there", status, None, _moved(fourth, same))
        races = [self.ask("PUT", "probe", _changed(same, holderIdentity=f"racer {number}")) for number in range(8)]
        yield Answer(
            "8 PUTs on one version at once", 0, None, sorted([status for status, _ in await asyncio.gather(*races)])
        )
        races = [self.ask("POST", body=lease("probe-race", holderIdentity=str(number))) for number in range(8)]
        yield Answer(
            "8 POSTs of one name at once", 0, None, sorted([status for status, _ in await asyncio.gather(*races)])
        )

    async def _lists(self) -> AsyncIterator[Answer]:
        for number, label in enumerate("xxy"):
            await self.ask("POST", body=lease(f"probe-{number}", {"labels": {"g": label}}))
        for check, query in (
            ("LIST by a label", {"labelSelector": "g=x"}),
            ("LIST by a set of labels", {"labelSelector": "g in (y),g!=x"}),
            ("LIST by a name", {"fieldSelector": "metadata.name=probe"}),
        ):
            status, found = await self.ask("GET", **query)
            yield Answer(check, status, None, sorted(item["metadata"]["name"] for item in found["items"]))
        yield _answer("LIST by a holder", await self.ask("GET", fieldSelector="spec.holderIdentity=a"))
        status, found = await self.ask("GET", limit="2")
        yield Answer("LIST of two", status, None, [len(found["items"]), bool(found["metadata"].get("continue"))])

    async def _patches(self) -> AsyncIterator[Answer]:
        _, found = await self.ask("GET", "probe")
        version = found["metadata"]["resourceVersion"]
        status, patched = await self.ask("PATCH", "probe", {"spec": {"holderIdentity": "patched"}}, MERGE)
        yield Answer("PATCH without a version", status, None, patched["spec"]["holderIdentity"])
        stale = {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": "again"}}
        yield _answer("PATCH on a version that was there", await self.ask("PATCH", "probe", stale, MERGE))
        for check, believed in (
            ("PATCH with a test that fails", "nobody"),
            ("PATCH with a test that holds", "patched"),
        ):
            steps = [{"op": "test", "path": "/spec/holderIdentity", "value": believed}]
            steps += [{"op": "replace", "path": "/spec/holderIdentity", "value": "z"}]
            status, answer = await self.ask("PATCH", "probe", steps, JSON_PATCH)
            yield Answer(check, status, answer.get("reason"), answer.get("spec", {}).get("holderIdentity"))

    async def _watches(self) -> AsyncIterator[Answer]:
        _, found = await self.ask("GET", fieldSelector="metadata.name=probe")
        version = found["metadata"]["resourceVersion"]
        current = (await self.ask("GET", "probe"))[1]
        await self.ask("PUT", "probe", _changed(current, holderIdentity="w"))
        await self.ask("PUT", "probe-0", _changed((await self.ask("GET", "probe-0"))[1], holderIdentity="other"))
        status, gone = await self.ask("DELETE", "probe")
        yield Answer("DELETE", status, None, [gone["kind"], gone["status"]])
        query = {"watch": "true", "fieldSelector": "metadata.name=probe", "resourceVersion": version}
        events: list[Any] = []
        async with self._session.get(self._leases, params=query | {"timeoutSeconds": "1"}) as response:
            async for line in response.content:
                event = json.loads(line)
                events.append(
                    [event["type"], event["object"]["metadata"]["name"], event["object"]["spec"]["holderIdentity"]]
                )
        yield Answer("WATCH of one name, until it ends by itself", 0, None, events)
        self._gone = current

    async def _deletions(self) -> AsyncIterator[Answer]:
        yield _answer("PUT of what was deleted", await self.ask("PUT", "probe", self._gone))
        unborn = copy.deepcopy(self._gone)
        for field in ("resourceVersion", "uid", "creationTimestamp"):
            del unborn["metadata"][field]
        unborn["metadata"].pop("managedFields", None)
        yield _answer("PUT of what was deleted, without uid and version", await self.ask("PUT", "probe", unborn))
        for field, wrong in (("resourceVersion", "1"), ("uid", "00000000-0000-0000-0000-000000000000")):
            options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {field: wrong}}
            yield _answer(f"DELETE with another {field}", await self.ask("DELETE", "probe", options))

    async def _validation(self) -> AsyncIterator[Answer]:
        names = ["Upper", "under_score", "a/b", "-x", "a..b", "a.b-c", "x" * 253, "x" * 254, "é", "a b", ""]
        for name in names:
            yield await self._make(f"name {name[:12]!r} of {len(name)}", lease(name))
        for check, metadata in (
            ("label value of 63", {"labels": {"k": "x" * 63}}),
            ("label value of 64", {"labels": {"k": "x" * 64}}),
            ("label value with /", {"labels": {"k": "a/b"}}),
            ("label key of 63", {"labels": {"ex.com/" + "k" * 63: "v"}}),
            ("label key of 64", {"labels": {"ex.com/" + "k" * 64: "v"}}),
            ("annotations of 262144 bytes", {"annotations": {"k": "x" * 262_143}}),
            ("annotations of 262145 bytes", {"annotations": {"k": "x" * 262_144}}),
            ("annotation key in upper case", {"annotations": {"Ex.com/K": "x"}}),
            ("annotation with any text", {"annotations": {"k": "é\n\x00"}}),
        ):
            yield await self._make(check, lease("probe-v", metadata))
        for size in (300, 1400, 1600, 3200):
            yield await self._make(f"holderIdentity of {size} KiB", lease("probe-v", holderIdentity="h" * size * 1024))
        yield await self._make("holderIdentity ''", lease("probe-v", holderIdentity=""))
        yield await self._make("no spec", {key: value for key, value in lease("probe-v").items() if key != "spec"})
        for field, values in (
            ("leaseDurationSeconds", (0, -1, 1.5, "15", 2**31 - 1, 2**31)),
            ("leaseTransitions", (2**31 - 1, 2**31, -1)),
            ("strategy", ("OldestEmulationVersion", "Bogus")),
            ("preferredHolder", ("b",)),
            ("bogus", ("x",)),
        ):
            for value in values:
                yield await self._make(f"{field} {value!r}", lease("probe-v", **{field: value}))
        strictly = await self.ask("POST", body=lease("probe-v", bogus="x"), fieldValidation="Strict")
        yield _answer("bogus 'x', strictly", strictly)
        minute = "2026-01-02T03:04:05"
        instants = [minute + rest for rest in (".123456Z", ".123456+00:00", ".123456+02:00", ".120000Z", "Z", "+00:00")]
        instants += [minute + rest for rest in (".123Z", ".123456789Z", ".123456")] + ["9999-12-31T23:59:59.999999Z"]
        for instant in instants:
            yield await self._make(f"renewTime {instant}", lease("probe-v", renewTime=instant), "renewTime")

    async def _elsewhere(self) -> AsyncIterator[Answer]:
        elsewhere = Probe(self._session, self._leases.replace("/default/", "/nosuch/"))
        yield _answer("GET in a namespace that is not there", await elsewhere.ask("GET", "x"))
        yield _answer("POST in a namespace that is not there", await elsewhere.ask("POST", body=lease("x")))
        yield _answer("POST of what is no JSON", await self.ask("POST", body="{bad json"))
        for name in ("probe", "probe-race", "probe-0", "probe-1", "probe-2"):
            await self.ask("DELETE", name)
        async with self._session.get(self._leases, headers={"Authorization": "Bearer wrong"}) as response:
            yield _answer("GET with a wrong token", (response.status, await response.json()))

    async def _make(self, check: str, body: Any, shown: str | None = None) -> Answer:
        status, answer = await self.ask("POST", body=body)
        if status == 201:
            await self.ask("DELETE", answer["metadata"]["name"])
        return Answer(check, status, answer.get("reason"), answer.get("spec", {}).get(shown) if shown else None)


def _answer(check: str, told: tuple[int, dict[str, Any]]) -> Answer:
    return Answer(check, told[0], told[1].get("reason"))


def _changed(found: dict[str, Any], **spec: Any) -> dict[str, Any]:
    changed = copy.deepcopy(found)
    changed["spec"] |= spec
    return changed


def _moved(before: dict[str, Any], after: dict[str, Any]) -> str:
    same = before["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]
    return "the same version" if same else "a new version"
