"""Who leads when leaders are killed, told to stop, or stopped in their tracks; and that each second counts once."""

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from example_app.demo.client import Client
from example_app.demo.fleet import Fleet

pytestmark = pytest.mark.anyio

LEASE = 2


class Entry(NamedTuple):
    what: str
    pid: int
    term: int


class Realm:
    """A fleet of four, and the chronicle of its leaders."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet = fleet
        self._chronicle = folder / "chronicle"

    def chronicle(self) -> list[Entry]:
        return [entry for entry in self._entries() if entry.what != "ticks"]

    def ticks(self) -> list[int]:
        """The ticks that ran, each a quarter of a second, in milliseconds since 1970."""
        return [entry.term for entry in self._entries() if entry.what == "ticks"]

    def reported(self, task: str) -> int:
        """How many runs of that task the fleet says it has missed."""
        found = re.findall(rf"task '{task}' missed (\d+) of its runs", self.fleet.log.read_text())
        return sum(map(int, found))

    def _entries(self) -> list[Entry]:
        lines = self._chronicle.read_text().splitlines() if self._chronicle.exists() else []
        return [Entry(what, int(pid), int(term)) for what, pid, term in (line.split() for line in lines)]

    async def wait_for(self, what: str, *, after: int = 0, pid: int | None = None) -> Entry:
        """The first such entry behind so many. Other processes are looked at from outside."""
        async with asyncio.timeout(20):
            while True:
                for entry in self.chronicle()[after:]:
                    if entry.what == what and pid in (None, entry.pid):
                        return entry
                await asyncio.sleep(0.01)

    async def leader(self) -> Entry:
        """Who leads now: the last to begin, or the next if that one has ended."""
        entries = self.chronicle()
        begun = [entry for entry in entries if entry.what == "begins"]
        if begun and ("ends", *begun[-1][1:]) not in entries:
            return begun[-1]
        return await self.wait_for("begins", after=len(entries))

    async def ask(self, path: str) -> list[dict[str, int]]:
        async with httpx.AsyncClient(base_url=self.fleet.url) as http:
            answer: list[dict[str, int]] = (await http.get(path)).raise_for_status().json()
            return answer


@pytest.fixture(scope="module")
def realm(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    folder = tmp_path_factory.mktemp("realm")
    environment = {
        "COORDINATION_URL": url,
        "EXAMPLE_DATABASE": str(folder / "shop.sqlite"),
        "EXAMPLE_LEASE": str(LEASE),
    }
    with ExitStack() as stack:
        fleet = stack.enter_context(Fleet("tests.processes.leading:app", folder, environment))
        yield Realm(fleet, folder)


async def test_one_of_four_leads(realm: Realm) -> None:
    leader = await realm.leader()
    seen: dict[int, dict[str, int]] = {}
    async with asyncio.timeout(20):
        while len(seen) < 4:
            async with httpx.AsyncClient(base_url=realm.fleet.url) as http:
                said = (await http.get("/leader")).json()
                seen[said["pid"]] = said
    assert [said for said in seen.values() if said["leading"]] == [
        {"pid": leader.pid, "leading": True, "term": leader.term}
    ]


async def test_after_kill_9_another_one_leads_with_a_higher_token(realm: Realm) -> None:
    before, entries = await realm.leader(), len(realm.chronicle())
    realm.fleet.kill(before.pid)
    after = await realm.wait_for("begins", after=entries)
    assert after.pid != before.pid
    assert after.term > before.term


async def test_a_leader_that_is_told_to_stop_hands_over_once_its_body_has_ended_and_still_answers(
    realm: Realm,
) -> None:
    before, entries = await realm.leader(), len(realm.chronicle())
    async with Client(realm.fleet.url) as one, Client(realm.fleet.url) as two:
        for client in (one, two):
            while await client.meet(lambda pid: pid == before.pid) != before.pid:
                pass
        slow, stream = asyncio.create_task(one.ask("GET", "/slow")), asyncio.create_task(two.ask("GET", "/stream"))
        await asyncio.sleep(0.2)  # until both are under way over there
        os.kill(before.pid, signal.SIGTERM)
        answers = await asyncio.gather(slow, stream)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[1].text.split() == [str(number) for number in range(15)]
    await realm.wait_for("streamed", after=entries)
    told = [entry for entry in realm.chronicle()[entries:] if entry.what != "answers" or entry.pid == before.pid]
    assert told[0] == ("ends", *before[1:])
    assert told[1].what == "begins"
    assert told[1].pid != before.pid
    assert {entry.what for entry in told[2:]} == {"answers", "streamed"}


async def test_a_leader_stopped_past_its_lease_ends_its_body_and_its_token_is_refused(realm: Realm) -> None:
    before, entries = await realm.leader(), len(realm.chronicle())
    realm.fleet.freeze(before.pid)
    try:
        after = await realm.wait_for("begins", after=entries)
    finally:
        realm.fleet.thaw(before.pid)
    await realm.wait_for("ends", after=entries, pid=before.pid)
    assert (after.pid != before.pid, after.term > before.term) == (True, True)
    # It may go on with whatever it was about to do. What it writes is refused.
    tokens: list[int] = []
    async with asyncio.timeout(10):
        while after.term not in tokens:
            tokens = [sweep["fencing_token"] for sweep in await realm.ask("/sweeps")]
    assert tokens == sorted(tokens)


async def test_each_second_was_counted_once_but_for_those_that_the_fleet_says_it_missed(realm: Realm) -> None:
    seconds = [tick["second"] for tick in await realm.ask("/ticks")]
    assert len(seconds) >= 5
    assert seconds == sorted(set(seconds))
    missing = set(range(seconds[0], seconds[-1])) - set(seconds)
    assert len(missing) <= realm.reported("tick")


async def test_quick_ticks_run_once_and_those_that_are_missing_are_reported(realm: Realm) -> None:
    ticks = realm.ticks()
    assert len(ticks) >= 20
    assert ticks == sorted(set(ticks))
    missing = set(range(ticks[0], ticks[-1], 250)) - set(ticks)
    assert len(missing) <= realm.reported("quick")
