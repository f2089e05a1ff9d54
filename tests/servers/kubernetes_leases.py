"""What an API server does with Leases, in memory: versions, validation, selectors, patches, history.

Written from what a real one (1.36) answers; `kubernetes_answers.txt` has those answers, and a test compares.
Not modelled: roles, server-side apply, managedFields, finalizers.
"""

import copy
import json
import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

Lease = dict[str, Any]
Key = tuple[str, str]

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_LABEL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?\Z")
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)\Z")
_INT32 = range(-(2**31), 2**31)
_TIMES = ("acquireTime", "renewTime")
_NUMBERS = ("leaseDurationSeconds", "leaseTransitions")
# Known, and dropped unless the server coordinates elections itself.
_OFF = ("strategy", "preferredHolder")


class RefusalError(Exception):
    """An answer other than success."""

    def __init__(self, status: int, reason: str | None, message: str, causes: list[dict[str, str]] | None = None):
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        self.body |= {"message": message, "code": status}
        if reason:
            self.body["reason"] = reason
        if causes:
            self.body["details"] = {"causes": causes}


def conflict(
    name: str, why: str = "the object has been modified; please apply your changes to the latest version"
) -> RefusalError:
    return RefusalError(409, "Conflict", f'Operation cannot be fulfilled on leases "{name}": {why}')


def invalid(name: str, why: str) -> RefusalError:
    return RefusalError(422, "Invalid", f'Lease.coordination.k8s.io "{name}" is invalid: {why}')


def bad(why: str) -> RefusalError:
    return RefusalError(400, "BadRequest", why)


class Leases:
    """All Leases of a cluster. `tell` is called with each change: version, kind, Lease."""

    def __init__(self) -> None:
        self.version = 100
        self.oldest = 100
        """Changes before this version are forgotten."""
        self.kept: dict[Key, Lease] = {}
        self.history: list[tuple[int, str, Lease]] = []
        self.tell: list[Callable[[int, str, Lease], object]] = []
        self.namespaces = {"default", "kube-system"}
        self.terminating: set[str] = set()

    def forget(self) -> None:
        """Compact the history."""
        self.history.clear()
        self.version += 1
        self.oldest = self.version

    def get(self, key: Key) -> Lease:
        if key not in self.kept:
            raise RefusalError(404, "NotFound", f'leases.coordination.k8s.io "{key[1]}" not found')
        return copy.deepcopy(self.kept[key])

    def create(self, namespace: str, given: Any, strict: bool = False) -> Lease:
        lease = _read(given, strict)
        if namespace not in self.namespaces:
            raise RefusalError(404, "NotFound", f'namespaces "{namespace}" not found')
        name = lease["metadata"].get("name") or ""
        if lease["metadata"].get("resourceVersion"):
            raise RefusalError(500, None, "resourceVersion should not be set on objects to be created")
        if (namespace, name) in self.kept:
            raise RefusalError(409, "AlreadyExists", f'leases.coordination.k8s.io "{name}" already exists')
        return self._make((namespace, name), lease)

    def replace(self, key: Key, given: Any) -> Lease:
        lease = _read(given)
        meta = lease["metadata"]
        if meta.get("name", key[1]) != key[1]:
            raise bad("the name of the object does not match the name on the URL")
        if key in self.kept:
            return self._change(key, lease)
        if meta.get("uid"):
            raise conflict(key[1], "StorageError: invalid object, Code: 4, UID in precondition")
        # Without a uid it is made anew, whatever its version.
        meta.pop("resourceVersion", None)
        return self._make(key, lease)

    def patch(self, key: Key, given: Any, kind: str) -> Lease:
        lease = self.get(key)
        if kind == "application/json-patch+json":
            return self._change(key, _read(_patched(lease, given)))
        return self._change(key, _read(_merged(lease, given)))

    def delete(self, key: Key, preconditions: dict[str, str]) -> Lease:
        lease = self.get(key)
        for field, label in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            if preconditions.get(field) not in (None, lease["metadata"][field]):
                raise conflict(key[1], f"the {label} in the precondition does not match the {label} in record")
        del self.kept[key]
        self._note("DELETED", lease)
        return lease

    def find(self, namespace: str, labels: str, fields: str) -> Callable[[Lease], bool]:
        """Read the selectors, and return what they select."""
        name = None
        for term in filter(None, fields.split(",")):
            field, value = re.split("==?", term, maxsplit=1)
            if field == "metadata.name":
                name = value
            elif field != "metadata.namespace":
                known = 'only "metadata.name", "metadata.namespace"'
                raise bad(f'"{field}" is not a known field selector: {known}')

        def selects(lease: Lease) -> bool:
            meta = lease["metadata"]
            if meta["namespace"] != namespace or name not in (None, meta["name"]):
                return False
            return _matches(labels, meta.get("labels") or {})

        return selects

    def _make(self, key: Key, lease: Lease) -> Lease:
        namespace, name = key
        if namespace in self.terminating:
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise RefusalError(403, "Forbidden", why, [{"reason": "NamespaceTerminating"}])
        lease["metadata"] |= {"namespace": namespace, "name": name}
        _validate(lease)
        born = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        lease["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": born}
        return self._keep(key, lease, "ADDED")

    def _change(self, key: Key, lease: Lease) -> Lease:
        current, meta, name = self.kept[key], lease["metadata"], key[1]
        there = current["metadata"]
        if meta.get("uid") not in (None, "", there["uid"]):
            raise conflict(name, "StorageError: invalid object, Code: 4, UID in precondition")
        version = meta.get("resourceVersion")
        if version in (None, "", "0"):
            raise invalid(name, "metadata.resourceVersion: Invalid value: 0: must be specified for an update")
        if not str(version).isdigit():
            raise RefusalError(500, None, f'strconv.ParseUint: parsing "{version}": invalid syntax')
        if version != there["resourceVersion"]:
            raise conflict(name)
        meta |= {"name": name, "namespace": key[0]}
        meta |= {"uid": there["uid"], "creationTimestamp": there["creationTimestamp"]}
        _validate(lease)
        # What changes nothing is no change: no new version, and nobody is told.
        return copy.deepcopy(current) if lease == current else self._keep(key, lease, "MODIFIED")

    def _keep(self, key: Key, lease: Lease, kind: str) -> Lease:
        self.kept[key] = lease
        self._note(kind, lease)
        return copy.deepcopy(lease)

    def _note(self, kind: str, lease: Lease) -> None:
        self.version += 1
        lease["metadata"]["resourceVersion"] = str(self.version)
        change = (self.version, kind, copy.deepcopy(lease))
        self.history.append(change)
        for tell in self.tell:
            tell(*change)


def _read(given: Any, strict: bool = False) -> Lease:
    spec: dict[str, Any] = {}
    for field, value in (given.get("spec") or {}).items():
        if field in _OFF or value is None:
            continue
        if field in _TIMES:
            if not isinstance(value, str) or not _MICRO_TIME.match(value):
                raise bad(f'parsing time "{value}" as "2006-01-02T15:04:05.000000Z07:00"')
            value = datetime.fromisoformat(value).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        elif field in _NUMBERS:
            if type(value) is not int or value not in _INT32:
                raise bad(f"json: cannot unmarshal into Go struct field LeaseSpec.spec.{field} of type int32")
        elif field != "holderIdentity":
            if strict:
                raise bad(f'strict decoding error: unknown field "spec.{field}"')
            continue
        elif not isinstance(value, str):
            raise bad("json: cannot unmarshal into Go struct field LeaseSpec.spec.holderIdentity of type string")
        spec[field] = value
    metadata = copy.deepcopy(given.get("metadata") or {})
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def _validate(lease: Lease) -> None:
    meta, spec = lease["metadata"], lease["spec"]
    name = meta["name"]
    if len(name) > 253 or not _SUBDOMAIN.match(name):
        raise invalid(name, "metadata.name: a lowercase RFC 1123 subdomain")
    for field in ("labels", "annotations"):
        for key, value in (meta.get(field) or {}).items():
            domain, slash, rest = (key if field == "labels" else key.lower()).rpartition("/")
            if not rest or len(rest) > 63 or not _LABEL.match(rest) or (slash and not _SUBDOMAIN.match(domain)):
                raise invalid(name, f"metadata.{field}: Invalid value: {key}")
            if field == "labels" and (len(value) > 63 or not _LABEL.match(value)):
                raise invalid(name, f"metadata.labels: Invalid value: {value}")
    texts = (text for pair in (meta.get("annotations") or {}).items() for text in pair)
    if sum(len(text.encode()) for text in texts) > 262_144:
        raise invalid(name, "metadata.annotations: Too long: may not be more than 262144 bytes")
    if spec.get("leaseDurationSeconds", 1) <= 0:
        raise invalid(name, "spec.leaseDurationSeconds: must be greater than 0")
    if spec.get("leaseTransitions", 0) < 0:
        raise invalid(name, "spec.leaseTransitions: must be greater than or equal to 0")
    if len(json.dumps(lease)) > 1_572_864:
        raise RefusalError(500, None, "etcdserver: request is too large")


def _matches(selector: str, labels: dict[str, str]) -> bool:
    for term in re.split(r",(?![^()]*\))", selector):
        term = term.strip()
        if among := re.match(r"(\S+)\s+(in|notin)\s+\((.*)\)$", term):
            found = labels.get(among[1]) in [value.strip() for value in among[3].split(",")]
            found = found is (among[2] == "in")
        elif "!=" in term:
            key, value = term.split("!=", 1)
            found = labels.get(key) != value
        elif "=" in term:
            key, value = re.split("==?", term, maxsplit=1)
            found = labels.get(key) == value
        else:
            found = not term or (term[1:] not in labels if term[0] == "!" else term in labels)
        if not found:
            return False
    return True


def _merged(target: Any, patch: Any) -> Any:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            target[key] = _merged(dict(target.get(key) or {}), value)
        else:
            target[key] = value
    return target


def _patched(target: Any, operations: Any) -> Any:
    failed = RefusalError(422, "Invalid", "the server rejected our request due to an error in our request")
    for operation in operations:
        *path, last = operation["path"].strip("/").split("/")
        place = target
        for step in path:
            place = place.get(step)
            if not isinstance(place, dict):
                raise failed
        match operation["op"]:
            case "test" if place.get(last) == operation["value"]:
                pass
            case "add" | "replace":
                place[last] = operation["value"]
            case "remove" if last in place:
                del place[last]
            case _:
                raise failed
    return target
