"""What can be measured. To add a file: write `rows()`, an async context manager that yields its rows, and list it."""

from bench.cases import contention, handover, imports, memory, postgres, redis, sqlite, waiting
from bench.row import Cases

CASES: dict[str, Cases] = {
    "memory": memory.rows,
    "sqlite": sqlite.rows,
    "redis": redis.rows,
    "postgres": postgres.rows,
    "handover": handover.rows,
    "contention": contention.rows,
    "waiting": waiting.rows,
    "imports": imports.rows,
}
