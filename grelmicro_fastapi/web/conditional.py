"""Conditional requests (RFC 9110): the generation as a strong `ETag`, `If-None-Match` and `If-Match`.

Whether `If-Match` holds is decided inside the acquire, where the generation is: a refused write changes nothing.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from fastapi import HTTPException, Response
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.coordination.guards import Guard, ReadGuard, WriteGuard
from grelmicro_fastapi.coordination.readwritelock import WriteView
from grelmicro_fastapi.errors import PreconditionRequiredError, StaleGenerationError

_OFFER: Final = "grelmicro.etag"
_TAG: Final = re.compile(r'\s*(W/)?"([^"\x00-\x20\x7f]*)"\s*(?:,|$)|\s*,')
_GENERATION: Final = re.compile(r"g(0|[1-9][0-9]{0,18})")


class NotModified(HTTPException):
    """The client has what we would send: 304."""

    def __init__(self, tag: str) -> None:
        super().__init__(304, headers={"etag": tag})


class Tags(NamedTuple):
    """What a condition names: everything (`*`), or opaque tags, each strong or weak."""

    everything: bool
    strong: tuple[str, ...]
    weak: tuple[str, ...]


def parse(header: str) -> Tags:
    """Read `If-Match` or `If-None-Match`. What is malformed names nothing."""
    if header.strip() == "*":
        return Tags(True, (), ())
    strong: list[str] = []
    weak: list[str] = []
    place = 0
    while place < len(header):
        found = _TAG.match(header, place)
        if found is None:
            return Tags(False, (), ())
        place = found.end()
        if found[2] is not None:
            (weak if found[1] else strong).append(found[2])
    return Tags(False, tuple(strong), tuple(weak))


def tag_of(generation: int) -> str:
    """The entity tag of one generation."""
    return f'"g{generation}"'


def etag(guards: Sequence[Guard]) -> str | None:
    """The entity tag of what these guards hold, or `None` while one of them is poisoned: nobody knows what it is."""
    generations: list[str] = []
    for guard in guards:
        if not isinstance(guard, ReadGuard | WriteGuard) or guard.poisoned:
            return None
        generations.append(f"g{guard.generation if isinstance(guard, ReadGuard) else guard.fencing_token}")
    return f'"{".".join(generations)}"'


def unchanged(conn: HTTPConnection, tag: str) -> bool:
    """Does the client ask for it only if it has changed, and it has not?"""
    if conn.scope.get("method") not in ("GET", "HEAD"):
        return False
    header = _header(conn, "if-none-match")
    if header is None:
        return False
    tags = parse(header)
    # If-None-Match compares weakly: a weak tag of the client matches too.
    return tags.everything or tag.strip('"') in tags.strong + tags.weak


def condition(conn: HTTPConnection, *, required: bool) -> Tags | None:
    """What this write expects, or `None`. Raises `PreconditionRequiredError` if it must say and does not."""
    header = _header(conn, "if-match")
    if header is None:
        if required:
            raise PreconditionRequiredError("this route wants If-Match")
        return None
    return parse(header)


async def acquire_matching(view: WriteView, tags: Tags, timeout: float | None, clock: Clock) -> WriteGuard:
    """Acquire if one of the tags is the generation. Raises `StaleGenerationError` if none is: then nothing changed."""
    # Strong comparison: a weak tag never matches. A tag that is not one of ours names no generation.
    wanted = [int(found[1]) for tag in tags.strong if (found := _GENERATION.fullmatch(tag))]
    until = None if timeout is None else clock.now() + timeout
    expect = wanted[0] if wanted else -1
    while True:
        left = None if until is None else max(0.0, until - clock.now())
        try:
            return await view.acquire(timeout=left, expect=expect)
        except StaleGenerationError as stale:
            # Not this one: the store says which it is, and whether that one is meant too.
            current = stale.current
            if current is None or current == expect or (current not in wanted and not tags.everything):
                raise
            expect = current


def offer(conn: HTTPConnection, response: Response | None, tag: str) -> None:
    """Send this tag with a good answer."""
    offered = conn.scope.get(_OFFER)
    if offered is not None:
        offered.append(tag)
    elif response is not None:
        response.headers["etag"] = tag


class EntityTags:
    """ASGI middleware: sends the tag also where the handler returns a response of its own."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and add the header to the start of a good answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        offered: list[str] = scope.setdefault(_OFFER, [])

        async def tagging(message: Message) -> None:
            if offered and message["type"] == "http.response.start" and 200 <= message["status"] < 300:
                headers = list(message.get("headers", ()))
                # A tag that the handler chose itself stays.
                if not any(name.lower() == b"etag" for name, _ in headers):
                    message = {**message, "headers": [*headers, (b"etag", offered[-1].encode())]}
            await send(message)

        await self.app(scope, receive, tagging)


def _header(conn: HTTPConnection, name: str) -> str | None:
    values = conn.headers.getlist(name)
    return ", ".join(values) if values else None
