"""What can be measured. To add a file: write `rows()`, an async context manager that yields its rows, and list it."""

from bench.cases import handover, imports, memory, sqlite
from bench.row import Cases

CASES: dict[str, Cases] = {
    "memory": memory.rows,
    "sqlite": sqlite.rows,
    "handover": handover.rows,
    "imports": imports.rows,
}
