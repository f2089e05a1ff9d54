"""Where a key lives: on one server, or on one of a cluster's."""

import asyncio
import binascii
import re
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

from grelmicro_fastapi.errors import BackendError
from grelmicro_fastapi.providers.redis_driver import Driver
from grelmicro_fastapi.providers.redis_node import Dial, Node
from grelmicro_fastapi.providers.redis_protocol import Word

SLOTS = 16_384
_REDIRECTS = 5


class Call(NamedTuple):
    """One run of the script for one key. `words` begin with how many keys there are, and the keys."""

    key: str
    words: Sequence[Word]


class Site(Protocol):
    """A deployment."""

    @property
    def sharded(self) -> bool:
        """True on a cluster: a name that is dropped keeps its fence there, and a wake travels in the key's slot."""
        ...

    async def open(self) -> None:
        """Connect. Raises `BackendError`."""

    async def close(self) -> None:
        """Hang up."""

    def lane(self, key: str) -> Hashable:
        """What goes to one server."""

    async def run(self, calls: Sequence[Call]) -> list[Any]:
        """Run the script; an answer is what it returned, or the error that the server answered with, or a
        `BackendError`. Raises `BackendError` if nothing is known of any."""
        ...

    async def nodes(self) -> Sequence[Node]:
        """The servers that keep keys. Raises `BackendError`."""
        ...


class OneServer:
    """One server, or the one that a Sentinel points to."""

    sharded = False

    def __init__(self, node: Node) -> None:
        self.node = node
        self.operation = node.operation

    async def open(self) -> None:
        """Connect."""
        self.node.reopen()
        await self.node.exchange([("PING",)])

    async def close(self) -> None:
        """Hang up."""
        await self.node.close()

    def lane(self, key: str) -> Hashable:
        """Everything goes to that server."""
        return None

    async def run(self, calls: Sequence[Call]) -> list[Any]:
        """Run the script."""
        answers = await self.node.run([call.words for call in calls])
        driver = self.node.driver
        # A server that became a replica has written nothing. The next connection finds the one that took over.
        demoted = [place for place, answer in enumerate(answers) if _code(driver, answer) == "READONLY"]
        if demoted:
            again = await self.node.run([calls[place].words for place in demoted])
            for place, answer in zip(demoted, again, strict=True):
                answers[place] = answer
        return answers

    async def nodes(self) -> Sequence[Node]:
        """That server."""
        return [self.node]


class Cluster:
    """The servers of a cluster. Each key is one slot's, so a slot that migrates loses none of its locks."""

    sharded = True

    def __init__(
        self,
        driver: Driver,
        seeds: Sequence[tuple[str, int]],
        connect: Callable[[str, int], Dial],
        connecting: float,
        operation: float,
        replicas: int = 0,
    ) -> None:
        self.driver = driver
        self._seeds = [f"{host}:{port}" for host, port in seeds]
        self._connect = connect
        self._bounds = connecting, operation, replicas
        self.operation = operation
        self._nodes: dict[str, Node] = {}
        self._owners: dict[int, str] = {}
        self._fresh = False
        self._learning = asyncio.Lock()

    async def open(self) -> None:
        """Learn who owns which slots."""
        for node in self._nodes.values():
            node.reopen()
        self._fresh = False
        await self._learn()

    async def close(self) -> None:
        """Hang up."""
        await asyncio.gather(*(node.close() for node in self._nodes.values()))

    def lane(self, key: str) -> Hashable:
        """The owner of its slot, as far as we know."""
        return self._owners.get(slot_of(key))

    async def run(self, calls: Sequence[Call]) -> list[Any]:
        """Run the script on the servers that own the keys, and follow where they point to."""
        answers: list[Any] = [None] * len(calls)
        todo = dict.fromkeys(range(len(calls)), "")
        for _ in range(_REDIRECTS):
            await self._learn()
            routes: dict[tuple[str, bool], list[int]] = {}
            for place, asking in todo.items():
                owner = asking or await self.owner(slot_of(calls[place].key))
                routes.setdefault((owner, bool(asking)), []).append(place)
            await asyncio.gather(*(self._visit(route, places, calls, answers) for route, places in routes.items()))
            todo = {place: where for place in todo if (where := self._elsewhere(answers[place])) is not None}
            if not todo:
                break
        return answers

    async def nodes(self) -> Sequence[Node]:
        """The owners of slots."""
        await self._learn()
        return [self.node(name) for name in sorted({*self._owners.values()})]

    def node(self, name: str) -> Node:
        """The server at an address."""
        if name not in self._nodes:
            host, _, port = name.rpartition(":")
            self._nodes[name] = Node(self.driver, self._connect(host, int(port)), *self._bounds)
        return self._nodes[name]

    async def owner(self, slot: int) -> str:
        """The address of the server that owns a slot. Raises `BackendError` if nobody does."""
        await self._learn()
        if slot not in self._owners:
            self._fresh = False
            await self._learn()
        if slot not in self._owners:
            problem = BackendError("no server of the cluster owns this slot at the moment")
            problem.sent = False
            raise problem
        return self._owners[slot]

    def doubt(self) -> None:
        """Something was not as we thought: ask the cluster again before the next step."""
        self._fresh = False

    async def _visit(
        self, route: tuple[str, bool], places: list[int], calls: Sequence[Call], answers: list[Any]
    ) -> None:
        name, asking = route
        try:
            got = await self.node(name).run([calls[place].words for place in places], ("ASKING",) if asking else ())
        except BackendError as error:
            self.doubt()
            got = [error] * len(places)
        for place, answer in zip(places, got, strict=True):
            answers[place] = answer

    def _elsewhere(self, answer: Any) -> str | None:
        """Where to ask instead: an address to ask with ASKING, "" for the owner, None if this answer stands."""
        code = _code(self.driver, answer)
        if code == "ASK" and (found := re.search(r"(\S+:\d+)\s*$", str(answer))):
            return found[1]
        if code in {"MOVED", "READONLY"}:
            if found := re.search(r"(\d+) (\S+:\d+)\s*$", str(answer)):
                self._owners[int(found[1])] = found[2]
            self.doubt()
            return ""
        if code == "CLUSTERDOWN":
            self.doubt()
        return None

    async def _learn(self) -> None:
        if self._fresh:
            return
        async with self._learning:
            if self._fresh:
                return
            problem: BackendError | None = None
            for name in dict.fromkeys([*self._owners.values(), *self._seeds]):
                try:
                    (ranges,) = await self.node(name).exchange([("CLUSTER", "SLOTS")])
                except BackendError as error:
                    problem = error
                    continue
                if isinstance(ranges, Exception):
                    problem = BackendError(f"the server does not tell the slots of its cluster: {ranges}")
                    continue
                host = name.rpartition(":")[0]
                self._owners = {
                    slot: f"{primary[0].decode() or host}:{primary[1]}"
                    for first, last, primary, *_ in ranges
                    for slot in range(first, last + 1)
                }
                self._fresh = True
                return
            problem = problem or BackendError("no server of the cluster is known")
            problem.sent = False
            raise problem


def slot_of(key: str) -> int:
    """The slot of a key: of what stands between its first braces, if anything does."""
    name = key.encode()
    start = name.find(b"{")
    if start >= 0 and (end := name.find(b"}", start + 1)) > start + 1:
        name = name[start + 1 : end]
    return binascii.crc_hqx(name, 0) % SLOTS


@cache
def tag(slot: int) -> str:
    """The first number whose text lies in that slot: a channel with it in braces lies there too."""
    number = 0
    while binascii.crc_hqx(b"%d" % number, 0) % SLOTS != slot:
        number += 1
    return str(number)


def _code(driver: Driver, answer: object) -> str:
    return driver.code(answer) if isinstance(answer, Exception) and not isinstance(answer, BackendError) else ""
