"""Visits every situation, breadth first, each once."""

from collections import deque

from .frozen import Broken, Step
from .network import Network
from .world import Scope


def explore(step: Step, scope: Scope) -> int:
    """Visit every situation within the scope and say how many there are. `Broken` tells the way to a bad one."""
    network = Network(step, scope)
    came: dict[int, tuple[int, str]] = {hash(network.start): (0, "")}
    frontier = deque([network.start])
    while frontier:
        world = frontier.popleft()
        here = hash(world)
        what = ""
        try:
            for what, following in network.moves(world):
                key = hash(following)
                if key not in came:
                    came[key] = (here, what)
                    network.check(following)
                    frontier.append(following)
        except Broken as broken:
            raise Broken(f"{broken}; it came to that by: {story(came, here)} | {what}") from None
    return len(came)


def story(came: dict[int, tuple[int, str]], here: int) -> str:
    """How it came to this situation."""
    told: list[str] = []
    while here in came:
        here, what = came[here]
        told.append(what)
    return " | ".join(reversed(told[:-1]))
