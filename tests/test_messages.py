"""What is written wrong is refused where it is written, in one sentence with the thing, the fact and the way out."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from grelmicro_fastapi.app.grelmicro import Grelmicro
from grelmicro_fastapi.coordination import Coordination, LeaderElection, Lock, ReadWriteLock, TaskLock
from grelmicro_fastapi.providers.kubernetes import KubernetesProvider
from grelmicro_fastapi.providers.memory import MemoryProvider
from grelmicro_fastapi.providers.postgres import PostgresProvider
from grelmicro_fastapi.providers.redis import RedisProvider
from grelmicro_fastapi.providers.sqlite import SqliteProvider
from grelmicro_fastapi.providers.urls import provider_from_url
from grelmicro_fastapi.providers.valkey import ValkeyProvider
from grelmicro_fastapi.tasks import Tasks
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
true: Any = True
synchronous: Any = redis.Redis()
POSTGRES = "postgresql://somebody@localhost/locks"


async def nothing() -> None:
    """A task's body."""


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
    "a port": (lambda: RedisProvider(host="h", port=text), "port= is a whole number from 1 to 65535, not 'x'"),
    "a port that is true": (
        lambda: RedisProvider(host="h", port=true),
        "port= is a whole number from 1 to 65535, not ",
    ),
    "a database's number": (lambda: ValkeyProvider(host="h", db=text), "db= is a whole number from 0 up, not 'x'"),
    "a host": (lambda: ValkeyProvider(host=wrong), "host= is text, and not of type int"),
    "a Redis URL": (lambda: RedisProvider(wrong), "url= is text, and not of type int"),
    "a password": (lambda: RedisProvider(host="h", password=wrong), "password= is text, and not of type int"),
    "a prefix": (lambda: RedisProvider("redis://h", prefix=wrong), "prefix= is text, and not of type int"),
    "how many replicas": (
        lambda: RedisProvider("redis://h", replicas=text),
        "replicas= is a whole number from 0 up, not 'x'",
    ),
    "the time to connect": (
        lambda: RedisProvider("redis://h", connect_timeout=text),
        "connect_timeout= is a number of seconds from 0.001 up, not 'x'",
    ),
    "a Redis URL as client": (
        lambda: RedisProvider.from_client(text),
        "RedisProvider.from_client takes a client of redis.asyncio, and no str: RedisProvider(url) takes a URL",
    ),
    "a client that nobody can wait for": (
        lambda: RedisProvider.from_client(synchronous),
        "RedisProvider.from_client takes a client of redis.asyncio, and not a synchronous one",
    ),
    "a PostgreSQL URL": (lambda: PostgresProvider(wrong), "url= is text, and not of type int"),
    "a schema": (lambda: PostgresProvider(POSTGRES, schema=wrong), "schema= is text, and not of type int"),
    "whether to migrate": (
        lambda: PostgresProvider(POSTGRES, auto_migrate=text),
        "auto_migrate= is True or False, not 'x'",
    ),
    "where to listen": (
        lambda: PostgresProvider(POSTGRES, listen_url=wrong),
        "listen_url= is text, and not of type int",
    ),
    "the size of a cache": (
        lambda: PostgresProvider(POSTGRES, statement_cache_size=text),
        "statement_cache_size= is a whole number from 0 up, not 'x'",
    ),
    "how long a call may take": (
        lambda: PostgresProvider(POSTGRES, timeout=text),
        "timeout= is a number of seconds from 0.001 up, not 'x'",
    ),
    "a PostgreSQL URL as client": (
        lambda: PostgresProvider.from_client(text),
        "PostgresProvider.from_client takes an asyncpg.Pool, and no str: PostgresProvider(url) takes a URL",
    ),
    "a path as client": (
        lambda: SqliteProvider.from_client(text),
        "SqliteProvider.from_client takes an aiosqlite.Connection, and no str: SqliteProvider(path) takes a path",
    ),
    "a namespace": (lambda: KubernetesProvider(wrong), "namespace= is text, and not of type int"),
    "a prefix of Leases": (lambda: KubernetesProvider(prefix=wrong), "prefix= is text, and not of type int"),
    "how long a call to the API server may take": (
        lambda: KubernetesProvider(timeout=text),
        "timeout= is a number of seconds from 0.01 up, not 'x'",
    ),
    "a client of Kubernetes": (
        lambda: KubernetesProvider.from_client(wrong),
        "KubernetesProvider.from_client takes a kubernetes_asyncio.client.ApiClient, and no int",
    ),
    "what an election shows": (
        lambda: LeaderElection("c", metadata=wrong),
        "metadata= is a mapping of texts, not of type int",
    ),
    "part of what an election shows": (
        lambda: LeaderElection("c", metadata={"zone": wrong}),
        "metadata= is a mapping of texts: each key and each value is text",
    ),
    "the election of tasks": (
        lambda: Tasks(election=text),
        "election= is a LeaderElection, and no str: LeaderElection(name) makes one",
    ),
    "a candidate": (lambda: Tasks(candidate=text), "candidate= is True or False, not 'x'"),
    "how often a task runs": (
        lambda: Tasks().every(text, on="cluster"),
        "every= is a number of seconds from 0.001 up, not 'x'",
    ),
    "a cron expression": (lambda: Tasks().cron(wrong), "a cron expression is text, and not of type int"),
    "a time zone": (lambda: Tasks().cron("* * * * *", timezone=wrong), "timezone= is text, and not of type int"),
    "a task's grace": (
        lambda: Tasks().cron("* * * * *", grace=text)(nothing),
        "grace= is a number of seconds from 0 up, not 'x'",
    ),
    "a task's name": (lambda: Tasks().every(3, name=wrong)(nothing), "name= is text, and not of type int"),
    "whether a task catches up": (
        lambda: Tasks().every(3, catch_up=text)(nothing),
        "catch_up= is True or False, not 'x'",
    ),
    "an option that no task has": (
        lambda: Tasks().every(3, **lease),
        "a task has no option lease=: choose from name=, jitter=, timeout=, on_error=",
    ),
    "what to include": (lambda: Tasks().include(wrong), "include takes a Tasks, and no int"),
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
