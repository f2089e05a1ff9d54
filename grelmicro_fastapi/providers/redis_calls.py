"""Batches as calls of the script."""

from collections.abc import Callable, Sequence

from grelmicro_fastapi.coordination.store import Ask
from grelmicro_fastapi.providers.redis_protocol import Word, pack
from grelmicro_fastapi.providers.redis_site import Call, slot_of, tag
from grelmicro_fastapi.providers.redis_wire import SHA

_TOGETHER = 1_000
"""Commands of one key in one call at the most: a server's stack bounds how many arguments a script can pass on."""

Part = tuple[str, list[int]]
"""A key, and the places in the batch of the commands for it that go in one call."""


class Calls:
    """Makes the calls of one store. `now` is the server's clock unless it is handed in."""

    def __init__(self, prefix: str, channel: str, now: Callable[[], int] | None, *, sharded: bool) -> None:
        self._prefix = prefix
        self._channel = channel
        self._now = now
        self._sharded = sharded
        self._floor = f"{prefix}floor"
        self._speaks = self.speaks(0)

    def call(self, key: str, commands: Sequence[Word]) -> Call:
        """One call, for whatever server the key is on."""
        name = self._prefix + key
        now = self._now() if self._now else ""
        if self._sharded:
            return Call(name, (1, name, now, self._channel, "SPUBLISH", self.speaks(slot_of(name)), *commands))
        return Call(name, (2, name, self._floor, now, self._channel, "PUBLISH", self.speaks(0), *commands))

    def packed(self, key: str, commands: Sequence[Word]) -> bytes:
        """The same call to one server, on its clock, as it is sent."""
        name = self._prefix + key
        return pack(("EVALSHA", SHA, 2, name, self._floor, "", self._channel, "PUBLISH", self._speaks, *commands))

    def speaks(self, slot: int) -> str:
        """What comes before a channel's name. On a cluster it lies in the slot of the key."""
        return f"{{{tag(slot)}}}{self._prefix}wake:" if self._sharded else f"{self._prefix}wake:"


def parts_of(asks: Sequence[Ask]) -> list[Part]:
    """The calls that a batch takes: one for each key, and more where a key has very many commands."""
    if len(asks) == 1:
        return [(asks[0].key, [0])]
    places: dict[str, list[int]] = {}
    for place, ask in enumerate(asks):
        places.setdefault(ask.key, []).append(place)
    return [
        (key, mine[start : start + _TOGETHER])
        for key, mine in places.items()
        for start in range(0, len(mine), _TOGETHER)
    ]
