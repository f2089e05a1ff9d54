"""What can be measured. To add a file: write `rows()`, an async context manager that yields its rows, and list it."""

from bench.cases import (
    contention,
    handover,
    imports,
    keeping,
    kubernetes,
    leaders,
    memory,
    postgres,
    redis,
    sqlite,
    waiting,
    web,
)
from bench.row import Cases

CASES: dict[str, Cases] = {
    "memory": memory.rows,
    "sqlite": sqlite.rows,
    "redis": redis.rows,
    "postgres": postgres.rows,
    "kubernetes": kubernetes.rows,
    "handover": handover.rows,
    "contention": contention.rows,
    "waiting": waiting.rows,
    "keeping": keeping.rows,
    "leaders": leaders.rows,
    "web": web.rows,
    "imports": imports.rows,
}
