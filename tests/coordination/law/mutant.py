"""Laws that are wrong on purpose. Each changes one place in the source of the real one."""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from grelmicro_fastapi.coordination import rules, turns, uncontended
from grelmicro_fastapi.coordination.state import Command, Reply, State

from .key import Law


class Mutant(NamedTuple):
    """A wrong law, named after what it breaks. `within` is the function that is changed, if it takes saying."""

    breaks: str
    room: ModuleType
    right: str
    wrong: str
    within: str = ""

    def law(self) -> Law:
        """Read both rooms anew, with one place changed, and no short way around it."""
        queue = _read(turns, self) if self.room is turns else vars(turns)
        law = _read(rules, self)
        law["alone"] = no_short_way
        law.update({name: queue[name] for name in law if name in queue and inspect.isfunction(queue[name])})
        return Law(law["step"], queue["outlook"])

    def short_way(self) -> "ShortWay":
        """The short way, with one place changed."""
        wrong: ShortWay = _read(uncontended, self)["alone"]
        return wrong


ShortWay = Callable[[State, Command, int], Reply | None]


def no_short_way(state: State, command: Command, now: int) -> None:
    """Leave everything to the whole law."""


def _read(room: ModuleType, mutant: Mutant) -> dict[str, Any]:
    source = inspect.getsource(room)
    if room is mutant.room:
        right = inspect.getsource(getattr(room, mutant.within)) if mutant.within else source
        if right.count(mutant.right) != 1:
            raise LookupError(f"{mutant.breaks}: {mutant.right!r} is there {right.count(mutant.right)} times")
        source = source.replace(right, right.replace(mutant.right, mutant.wrong))
    names: dict[str, Any] = {"__name__": f"a mutant of {room.__name__}"}
    exec(compile(source, names["__name__"], "exec"), names)
    return names


def of_rules(breaks: str, right: str, wrong: str, within: str = "") -> Mutant:
    return Mutant(breaks, rules, right, wrong, within)


def of_turns(breaks: str, right: str, wrong: str, within: str = "") -> Mutant:
    return Mutant(breaks, turns, right, wrong, within)


def of_the_short_way(breaks: str, right: str, wrong: str, within: str = "") -> Mutant:
    return Mutant(breaks, uncontended, right, wrong, within)
