"""What a key is called in the cluster, and how its Lease is told from others."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from grelmicro_fastapi.providers.kubernetes_errors import certain

Lease = dict[str, Any]
"""A Lease as the API server sends it. What we do not know in it is sent back as it came."""

KEY = "grelmicro-fastapi/key"
"""The annotation with the true name. What the Lease is called is a readable hint and a hash of it."""
RECORD = "grelmicro-fastapi/record"
"""The annotation with all that is not in the spec."""
DROPPED = "grelmicro-fastapi/dropped"
"""The annotation of a purged name: when, in ms since 1970."""
_MANAGED_BY = "app.kubernetes.io/managed-by"
_MANAGER = "grelmicro"
_PREFIX = "grelmicro-fastapi/prefix"
_HINT = 40


def part(thing: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return an object inside another; empty where it is missing or something else."""
    found = thing.get(name)
    return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType] # JSON has no types


def annotations(lease: Lease) -> dict[str, Any]:
    """Its annotations, ours and those of others."""
    return part(part(lease, "metadata"), "annotations")


class Names:
    """The names of one application: of all keys under one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._label = f"{_slug(prefix, _HINT // 2)}-{_hash(prefix)}".lstrip("-") if prefix else ""
        self.labels = {_MANAGED_BY: _MANAGER, _PREFIX: self._label}
        self.selector = f"{_MANAGED_BY}={_MANAGER},{_PREFIX}={self._label}"
        # No prefix and no key holds a NUL, and no key is empty: so nothing else is called like this.
        self.floor = f"floor-{_hash(prefix + chr(0))}"

    def lease(self, key: str) -> str:
        """What the Lease of that key is called: never what another key's is called."""
        slug, text = self._prefix + key, f"{self._prefix}\0{key}"
        return f"{_slug(slug, _HINT)}-{_hash(text)}".lstrip("-")

    def full(self, key: str) -> str:
        """The true name, prefix included."""
        return self._prefix + key

    def key(self, lease: Lease) -> str | None:
        """Whose Lease this is, or None if it is not one of ours, or is the floor."""
        labels = part(part(lease, "metadata"), "labels")
        full = annotations(lease).get(KEY)
        if not isinstance(full, str) or not full.startswith(self._prefix):
            return None
        if labels.get(_MANAGED_BY) != _MANAGER or labels.get(_PREFIX) != self._label:
            return None
        return full[len(self._prefix) :]

    def verify(self, key: str, lease: Lease) -> None:
        """Raise `BackendError` unless it is that key's Lease: never take over what belongs to somebody else."""
        if self.key(lease) != key:
            raise certain(
                f"the Lease {self.lease(key)!r} is in the way of {key!r} and was not made for it: remove it, or "
                "choose another prefix"
            )


def _slug(text: str, most: int) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:most].strip("-")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
