"""What is written wrong is refused where it is written, in one sentence with the thing, the fact and the way out."""

from collections.abc import Callable
from typing import Any

import pytest

from grelmicro_fastapi.app.grelmicro import Grelmicro
from grelmicro_fastapi.coordination import Coordination, LeaderElection, Lock, ReadWriteLock, TaskLock
from grelmicro_fastapi.providers.memory import MemoryProvider
from grelmicro_fastapi.providers.urls import provider_from_url
from grelmicro_fastapi.web.dependencies import lock_guard, read_guard, write_guard
from grelmicro_fastapi.web.leader import leader_guard

# What type checkers would refuse: not everybody has one.
wrong: Any = 7
unset: Any = None
kind: Any = MemoryProvider
text: Any = "x"
lease: Any = {"lease": 3}
longest: Any = {"max_hold": 3}
memory: Any = MemoryProvider()

MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "an option that a lock has not": (
        lambda: Lock("c", **lease),
        "lease=: there is no such option, choose from worker=, lease_duration=, ",
    ),
    "an option of another noun": (
        lambda: TaskLock("c", **longest),
        "max_hold=: there is no such option, choose from worker=, lease_duration=, min_hold_duration=, ",
    ),
    "a length that is none": (lambda: Lock("c", lease_duration=text), "lease_duration=: must be a valid number"),
    "a length that is too short": (
        lambda: Lock("c", lease_duration=0),
        "lease_duration=: must be greater than or equal to 0.001",
    ),
    "options that do not go together": (
        lambda: LeaderElection("c", retry_interval=20),
        "retry_interval=: lease_duration must be longer than renew_deadline",
    ),
    "a lock's name": (lambda: Lock(wrong), "a lock's name is text: 7 is of type int"),
    "a read-write lock's name": (lambda: ReadWriteLock(wrong), "a lock's name is text: 7 is of type int"),
    "an election's name": (lambda: LeaderElection(wrong), "a lock's name is text: 7 is of type int"),
    "a guard's name": (lambda: write_guard(wrong), "a lock's name is text: 7 is of type int"),
    "one of a guard's names": (lambda: read_guard("a", wrong), "a lock's name is text: 7 is of type int"),
    "a URL as backend": (
        lambda: Lock("c", backend=text),
        "backend= takes a provider, a Coordination, or what provider.lock() returned, and no str: provider_from_url()",
    ),
    "a read-write lock's backend": (lambda: ReadWriteLock("c", backend=wrong), "backend= takes a provider, "),
    "a task lock's backend": (lambda: TaskLock("c", backend=wrong), "backend= takes a provider, "),
    "an election's backend": (lambda: LeaderElection("c", backend=wrong), "backend= takes a provider, "),
    "a guard's backend": (lambda: write_guard("c", backend=wrong), "backend= takes a provider, "),
    "an option that no guard has": (
        lambda: write_guard("a", **lease),
        "write_guard has no option lease=: choose from required=, wait=, ",
    ),
    "a guard's wait": (
        lambda: write_guard("a", wait=text),
        "write_guard('a', wait='x'): wait= must be a number of seconds, or None to wait without end",
    ),
    "a guard's status": (lambda: read_guard("a", status=text), "status= must be the status of an error, 400 to 599"),
    "a guard's requirements": (lambda: lock_guard("a", requires=wrong), "requires= must be a list of functions or "),
    "one of a guard's requirements": (lambda: lock_guard("a", requires=[wrong]), "requires= must be a list of "),
    "a guard's key": (lambda: read_guard("a", key=text), "key= must be a function that returns the name"),
    "a guard's flag": (lambda: read_guard("a", etag=text), "etag= must be True or False"),
    "the election of a guard": (
        lambda: leader_guard(wrong),
        "leader_guard takes an election or its name, and not 7",
    ),
    "a part by itself": (
        lambda: Grelmicro(uses=memory),
        "uses= takes a list of parts, such as uses=[RedisProvider()], and no MemoryProvider by itself",
    ),
    "a URL as list of parts": (lambda: Grelmicro(uses=text), "uses= takes a list of parts, "),
    "a URL as part": (
        lambda: Grelmicro(uses=[text]),
        "uses= takes providers, Coordination, Tasks and other async context managers, and not what is of type str",
    ),
    "a class as part": (
        lambda: Grelmicro(uses=[kind]),
        "and not the class MemoryProvider: call it",
    ),
    "the time to drain": (lambda: Grelmicro(drain=text), "drain= is a number of seconds from 0 up, not 'x'"),
    "what a Coordination stands on": (
        lambda: Coordination(text),
        "a Coordination takes a provider as its store, and no str: provider_from_url() makes one of a URL",
    ),
    "where leaders are elected": (
        lambda: Coordination(memory, election=wrong),
        "a Coordination takes a provider as election=, and no int",
    ),
    "a URL that is not set": (
        lambda: provider_from_url(unset),
        "a URL is text such as redis://localhost, and not NoneType: is the variable set that holds it?",
    ),
    "a URL of no store": (
        lambda: provider_from_url("mysql://root@localhost"),
        "no provider serves this URL: its scheme must be one of memory, sqlite, redis, ",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_the_way_out(mistake: str) -> None:
    make, sentence = MISTAKES[mistake]
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the sentence is compared below
        make()
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)
