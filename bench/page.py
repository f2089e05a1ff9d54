"""`docs/benchmarks.md`: its figures are those of the last run that was told to write them there."""

from collections.abc import Sequence
from pathlib import Path

from bench.report import cells
from bench.rounds import Result

_BEGIN, _END = "<!-- figures: made by make bench -->\n", "<!-- end of figures -->\n"


def write(page: Path, machine: str, command: str, results: Sequence[Result]) -> None:
    """Put the figures in the place that the page has for them. Raises `ValueError` if it has none."""
    text = page.read_text()
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"{page} has no place for figures: {_BEGIN.strip()} ... {_END.strip()}")
    page.write_text(before + _BEGIN + _figures(machine, command, results) + _END + after)


def _figures(machine: str, command: str, results: Sequence[Result]) -> str:
    lines = ["```console", f"$ {command}", machine, "```", ""]
    lines += ["| measure | budget | figure | 95 % interval | verdict | case / floor |", "|---|---|---|---|---|---|"]
    notes: list[str] = []
    for result in results:
        title, *rest = cells(result)
        if note := result.failure or result.row.note:
            if note not in notes:
                notes.append(note)
            title += f" ({notes.index(note) + 1})"
        lines.append("| " + " | ".join([title, *rest]) + " |")
    lines += [f"\n({number}) {note}." for number, note in enumerate(notes, 1)]
    return "\n".join(lines) + "\n"
