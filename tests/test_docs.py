"""The pages are true: every Python example runs, every request shown is answered so, every link leads somewhere.

What a page cannot say without distracting its reader stands in an HTML comment above the block:

    <!-- try: PUT /catalog ["pear"] 200 -->            send this to the block's `app`, and expect that status
    <!-- try: PUT /page [If-Match: "g1"] 412 -->       the same with a header
"""

import asyncio
import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from asgi_lifespan import LifespanManager

from grelmicro_fastapi import settings

REPOSITORY = Path(__file__).parent.parent
PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
MAKEFILE = (REPOSITORY / "Makefile").read_text()

_BLOCK = re.compile(r"((?:<!-- try: [^\n]* -->\n)*)^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_TRY = re.compile(r"<!-- try: ([A-Z]+) (\S+)(?: \[([\w-]+): (.+)\])?(?: (.+))? (\d{3}) -->")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: str
    status: int


def request(method: str, path: str, header: str, value: str, body: str, status: str) -> Request:
    return Request(method, path, {header: value} if header else {}, body, int(status))


class Block(NamedTuple):
    page: Path
    line: int
    code: str
    requests: list[Request]


def blocks() -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text()
        for found in _BLOCK.finditer(text):
            requests = [request(*parts) for parts in _TRY.findall(found[1])]
            assert len(requests) == found[1].count("<!-- try:"), f"{page}: not understood: {found[1]}"
            yield Block(page, text.count("\n", 0, found.start(2)) + 1, found[2], requests)


def where(page: Path, line: int | None = None) -> str:
    name = page.relative_to(REPOSITORY).as_posix()
    return name if line is None else f"{name}:{line}"


every_page = pytest.mark.parametrize("page", PAGES, ids=where)


@pytest.mark.parametrize("block", [pytest.param(block, id=where(block.page, block.line)) for block in blocks()])
def test_an_example_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # An example may set variables; they go when the test ends, and nothing remembers them.
    monkeypatch.setattr(os, "environ", os.environ.copy())
    settings.forget()
    # Lines are counted as on the page, so that a traceback points into it.
    code = compile("\n" * (block.line - 1) + block.code, block.page, "exec", dont_inherit=True)
    names: dict[str, Any] = {"__name__": "example"}
    exec(code, names)
    if "app" in names:
        asyncio.run(answers(names["app"], block.requests))
    else:
        assert not block.requests
    settings.forget()


async def answers(app: Any, requests: list[Request]) -> None:
    async with LifespanManager(app) as running:
        transport = httpx.ASGITransport(running.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            for one in requests:
                body = json.loads(one.body) if one.body else None
                response = await client.request(one.method, one.path, headers=one.headers, json=body)
                assert response.status_code == one.status, response.text


@every_page
def test_no_example_is_overlooked(page: Path) -> None:
    text = page.read_text()
    assert len(re.findall("```py", text)) == len([block for block in blocks() if block.page == page])
    assert text.count("<!-- try:") == sum(len(block.requests) for block in blocks() if block.page == page)


def test_a_block_that_starts_the_readme_can_be_seen_at_a_glance() -> None:
    first = next(block for block in blocks() if block.page.name == "README.md")
    assert first.line < 10
    assert len([line for line in first.code.splitlines() if line]) <= 10


@every_page
def test_a_link_leads_somewhere(page: Path) -> None:
    dead = []
    for target in _LINK.findall(page.read_text()):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            dead.append(target)
    assert not dead


def anchors(page: Path) -> set[str]:
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings(page)}


def headings(page: Path) -> list[str]:
    return _HEADING.findall(page.read_text())


@every_page
def test_a_page_of_the_docs_can_be_found_from_the_start(page: Path) -> None:
    reached, todo = set[Path](), [REPOSITORY / "README.md", REPOSITORY / "docs" / "index.md"]
    while todo:
        if (current := todo.pop()) in reached:
            continue
        reached.add(current)
        targets = [target.partition("#")[0] for target in _LINK.findall(current.read_text())]
        todo += [(current.parent / target).resolve() for target in targets if target.endswith(".md")]
    assert page in reached


@every_page
def test_a_command_that_is_shown_exists(page: Path) -> None:
    shown = re.findall(r"(?:`|^\$ )make ([a-z-]+)", page.read_text(), re.MULTILINE)
    assert set(shown) <= set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE))


@every_page
def test_a_file_that_is_named_exists(page: Path) -> None:
    named = re.findall(r"`((?:coordination|providers|tests|docs|\.ci)/[\w./-]*|[\w-]+\.md)`", page.read_text())
    roots = (REPOSITORY, REPOSITORY / "grelmicro_fastapi", page.parent)
    assert not [name for name in named if not any((root / name).exists() for root in roots)]


def test_the_readme_and_the_docs_promise_the_same() -> None:
    readme, docs = (
        " ".join(re.findall(r"^> (.*)$", (REPOSITORY / page).read_text(), re.MULTILINE))
        for page in ("README.md", "docs/promises.md")
    )
    assert "the fencing token decides" in readme
    assert readme == docs


def test_the_glossary_has_every_word_of_the_house() -> None:
    words = {"name", "key", "attempt", "lease", "fence", "seat", "state", "command", "reply", "guard", "store"}
    words |= {"courier", "waiting room", "keeper", "turn", "called", "grave", "poison", "scope", "provider"}
    assert words <= set(headings(REPOSITORY / "docs" / "glossary.md"))


def test_a_shell_command_of_the_readme_is_one_of_two() -> None:
    shown = re.findall(r"^\$ ([^#\n]+)", (REPOSITORY / "README.md").read_text(), re.MULTILINE)
    assert [shlex.split(command) for command in shown] == [["make", "demo"], ["make", "test"]]
