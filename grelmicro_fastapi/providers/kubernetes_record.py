"""States as Leases. No instant is kept, for hosts do not agree on the time: only how long each thing still lasts.

Everything that ends has a beat, a number that changes whenever its end does. Who sees a beat for the first time counts
from that moment on his own clock, so an end never comes earlier than whoever set it believes.
"""

import copy
import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from grelmicro_fastapi.coordination.state import VERSION, Mode, Seat, State, Writer
from grelmicro_fastapi.providers.kubernetes_errors import certain
from grelmicro_fastapi.providers.kubernetes_names import DROPPED, KEY, RECORD, Lease, annotations, part

Seen = dict[tuple[str, str], tuple[int, int]]
"""What this process has seen: for each thing that ends its beat, and its end on our own clock in ms."""

_HIGHEST = 2**31 - 1
_ROOM = 250_000
"""Bytes that a record may have. A Lease takes 262,144 of annotations."""


def load(key: str, lease: Lease, seen: Seen, now: int) -> tuple[State, Seen]:
    """Rebuild the state from a Lease seen at `now`, and say what has been seen by now.

    Raises `BackendError` for a record that somebody has damaged.
    """
    transitions = part(lease, "spec").get("leaseTransitions") or 0
    text = annotations(lease).get(RECORD)
    if text is None:
        return State(transitions), {}
    try:
        record = json.loads(text)
        if record["v"] > VERSION:
            # What we cannot read may hold what we have seen before.
            return State(version=record["v"]), seen
        return _load(record, transitions, seen, now)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise certain(f"the record of {key!r} is damaged: mend its Lease, or delete it") from None


def _load(record: dict[str, Any], transitions: int, seen: Seen, now: int) -> tuple[State, Seen]:
    found: Seen = {}

    def end(kind: str, name: str, beat: int, lasts: int) -> int:
        known = seen.get((kind, name))
        until = known[1] if known and known[0] == beat else now + lasts
        found[kind, name] = (beat, until)
        return until

    writer = None
    if kept := record.get("writer"):
        token: str = kept["token"]
        since = end("since", token, *kept["since"])
        writer = Writer(token, since, end("writer", token, *kept["until"]), kept["note"], kept["poisoned"])
    seats: list[Seat] = []
    for name, mode, until, turn, called, grace in record.get("seats", ()):
        call = end("call", name, *called) if called else 0
        seats.append(Seat(name, Mode(mode), end("seat", name, *until), turn, call, grace))
    state = State(
        fence=record.get("fence", transitions),
        poisoned=record.get("poisoned", False),
        writer=writer,
        readers={token: end("reader", token, *until) for token, until in record.get("readers", {}).items()},
        seats=seats,
        graves={token: end("grave", token, *until) for token, until in record.get("graves", {}).items()},
        claimant=record.get("claimant", ""),
        touched=record["touched"],
    )
    return state, found


def version_of(lease: Lease) -> int:
    """How new this is: versions of one Lease rise. 0 if it is not written yet, or the version is no number."""
    version = str(part(lease, "metadata").get("resourceVersion"))
    return int(version) if version.isdecimal() else 0


def stamp_of(lease: Lease) -> str:
    """Who wrote it last, and in which of his writes; "" if that cannot be said."""
    try:
        stamp = json.loads(annotations(lease)[RECORD])["stamp"]
    except (ValueError, TypeError, KeyError):
        return ""
    return stamp if isinstance(stamp, str) else ""


def save(key: str, lease: Lease, state: State, seen: Seen, now: int, stamp: str, wall: float) -> tuple[Lease, Seen]:
    """Put the state into a copy of the Lease, and say what will have been seen once that is written.

    What is foreign in the Lease stays. Raises `BackendError` if the fence or the record does not fit.
    """
    before = annotations(lease).get(RECORD, "{}")
    # No write that counts has the same version below it, so no beat comes twice.
    beat = max(json.loads(before).get("beat", 0) + 1, version_of(lease))
    found: Seen = {}

    def lasts(kind: str, name: str, until: int) -> list[int]:
        known = seen.get((kind, name))
        found[kind, name] = (known[0] if known and known[1] == until else beat, until)
        return [found[kind, name][0], until - now]

    record = _record(state, lasts) | {"beat": beat, "stamp": stamp}
    if not state.claimant:
        del record["fence"]
        if state.fence > _HIGHEST:
            raise certain(f"the fence of {key!r} would go beyond {_HIGHEST}, where a Lease's numbers end")
    text = json.dumps(record, separators=(",", ":"))
    if len(text) > max(_ROOM, len(before)):
        raise certain(f"{key!r} has more holders and waiters than fit into one Lease")
    lease = copy.deepcopy(lease)
    kept = lease["metadata"].setdefault("annotations", {})
    kept[RECORD] = text
    kept.pop(DROPPED, None)
    lease["spec"] = _spec(part(lease, "spec"), state, now, wall)
    return lease, found


def _record(state: State, lasts: Callable[[str, str, int], list[int]]) -> dict[str, Any]:
    record: dict[str, Any] = {"v": state.version, "fence": state.fence, "touched": state.touched}
    if state.poisoned:
        record["poisoned"] = True
    if state.claimant:
        record["claimant"] = state.claimant
    if writer := state.writer:
        record["writer"] = {
            "token": writer.token,
            "since": lasts("since", writer.token, writer.since),
            "until": lasts("writer", writer.token, writer.until),
            "note": writer.note,
            "poisoned": writer.poisoned,
        }
    for kind, leases in (("reader", state.readers), ("grave", state.graves)):
        if leases:
            record[f"{kind}s"] = {token: lasts(kind, token, until) for token, until in leases.items()}
    if state.seats:
        record["seats"] = [
            [
                seat.id,
                seat.mode,
                lasts("seat", seat.id, seat.until),
                seat.turn,
                lasts("call", seat.id, seat.called) if seat.called else 0,
                seat.grace,
            ]
            for seat in state.seats
        ]
    return record


def _spec(spec: dict[str, Any], state: State, now: int, wall: float) -> dict[str, Any]:
    """What `kubectl get lease` shows. Nobody here believes it, but for the number of transitions."""
    ours = ("holderIdentity", "leaseDurationSeconds", "acquireTime", "leaseTransitions")
    spec = {name: value for name, value in spec.items() if name not in ours}
    spec["renewTime"] = micro_time(wall)
    if not state.claimant:
        spec["leaseTransitions"] = state.fence
    writer = state.writer
    spec["holderIdentity"] = _holder(writer.token) if writer else ""
    if writer and writer.token:
        spec["leaseDurationSeconds"] = min(max(1, math.ceil((writer.until - now) / 1000)), _HIGHEST)
        spec["acquireTime"] = micro_time(wall - (now - writer.since) / 1000)
    return spec


def _holder(token: str) -> str:
    """The worker of a token. The rest of it is a secret, and the spec is what everybody looks at."""
    worker, *rest = token.rsplit(":", 3)
    return worker if len(rest) == 3 else "held" if token else "cooldown"


def tombstone(lease: Lease, fence: int, wall: float) -> Lease:
    """The Lease of a purged name: its fence, and nothing else of ours."""
    lease = copy.deepcopy(lease)
    kept = annotations(lease)
    kept.pop(RECORD, None)
    kept[DROPPED] = str(int(wall * 1000))
    lease["spec"] = _spec(part(lease, "spec"), State(fence), 0, wall)
    return lease


def blank(name: str, labels: dict[str, str], full: str | None = None) -> Lease:
    """A Lease that is still to be created."""
    metadata: dict[str, Any] = {"name": name, "labels": dict(labels)}
    if full is not None:
        metadata["annotations"] = {KEY: full}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {}}


def micro_time(wall: float) -> str:
    """The only form of an instant that the API server takes: six digits and a zone."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
