"""One law in several tongues: every port of `rules.py` tells the same histories with the same words.

To add a port, append a `Port` to `PORTS`: what starts it on a server, its source, and mutants of that source. Each
mutant must be told apart from the law, so that we know that the comparison sees such faults.
"""

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grelmicro_fastapi.providers.postgres_schema import SOURCE
from tests.coordination.histories import Batch, History, Outcome, history, line, tell
from tests.coordination.port_postgres import MUTANTS as POSTGRES_MUTANTS
from tests.coordination.port_postgres import postgres_port
from tests.coordination.port_redis import MUTANTS as REDIS_MUTANTS
from tests.coordination.port_redis import SOURCE as REDIS_SOURCE
from tests.coordination.port_redis import redis_port

Run = Callable[[History], Sequence[Outcome]]
"""Tells one history on a key that nobody used before."""


@dataclass(frozen=True)
class Port:
    """`start` takes the value of the fixture `server` and the port's source, perhaps a mutant of it."""

    name: str
    server: str
    source: str
    start: Callable[[Any, str], AbstractContextManager[Run]]
    mutants: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By what it breaks: a piece of the source that occurs once, and what stands there instead."""


PORTS = [
    Port("redis", "valkey_server", REDIS_SOURCE, redis_port, REDIS_MUTANTS),
    Port("postgres", "postgres", SOURCE, postgres_port, POSTGRES_MUTANTS),
]

ports = pytest.mark.parametrize("port", PORTS, ids=lambda port: port.name)
mutants = pytest.mark.parametrize(
    ("port", "mutant"),
    [pytest.param(port, mutant, id=f"{port.name}-{mutant}") for port in PORTS for mutant in port.mutants],
)


@cache
def corpus() -> list[tuple[list[Batch], list[Outcome]]]:
    rng = random.Random(20_261_130)
    told = [history(rng) for _ in range(500)] + [line(rng) for _ in range(200)]
    return [(one, tell(one)) for one in told]


def difference(run: Run, batches: History, expected: Sequence[Outcome]) -> str | None:
    """The first moment at which the port and the law part, or None."""
    for number, (batch, ours, law) in enumerate(zip(batches, run(batches), expected, strict=True)):
        if ours != law:
            return f"batch {number}: {batch}\nthe port: {ours}\nthe law:  {law}"
    return None


def told_apart(run: Run, batches: History, expected: Sequence[Outcome]) -> bool:
    try:
        return difference(run, batches, expected) is not None
    except ValueError:  # what it keeps cannot even be read
        return True


@ports
def test_a_port_tells_every_history_as_the_law_does(port: Port, request: pytest.FixtureRequest) -> None:
    with port.start(request.getfixturevalue(port.server), port.source) as run:

        @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(st.randoms(use_true_random=False))
        def agree(rng: random.Random) -> None:
            batches = line(rng) if rng.random() < 0.3 else history(rng)
            assert (found := difference(run, batches, tell(batches))) is None, found

        agree()


@ports
def test_a_port_tells_a_fixed_set_of_histories_as_the_law_does(port: Port, request: pytest.FixtureRequest) -> None:
    with port.start(request.getfixturevalue(port.server), port.source) as run:
        for batches, expected in corpus():
            assert (found := difference(run, batches, expected)) is None, found


@mutants
def test_a_port_that_breaks_the_law_is_found_out(port: Port, mutant: str, request: pytest.FixtureRequest) -> None:
    old, new = port.mutants[mutant]
    assert port.source.count(old) == 1, f"the source has {port.source.count(old)} of {old!r}"
    with port.start(request.getfixturevalue(port.server), port.source.replace(old, new)) as run:
        assert any(told_apart(run, batches, expected) for batches, expected in corpus()), "nobody noticed"
