"""Tests of the tables: each wrong law must be caught by a row."""

import inspect
from collections.abc import Callable, Iterator

import pytest

from . import (
    test_attempts,
    test_grace,
    test_leases,
    test_operators,
    test_poison,
    test_reading_and_writing,
    test_turns,
    test_wakes,
)
from .key import REAL, Key, Law
from .mutant import Mutant
from .wrong_endings import WRONG_ENDINGS
from .wrong_grants import WRONG_GRANTS
from .wrong_turns import WRONG_TURNS

MUTANTS = [*WRONG_GRANTS, *WRONG_ENDINGS, *WRONG_TURNS]
TABLES = (
    test_attempts,
    test_grace,
    test_leases,
    test_operators,
    test_poison,
    test_reading_and_writing,
    test_turns,
    test_wakes,
)


def rows() -> Iterator[Callable[[Key], None]]:
    """Every test of the tables that needs nothing but a key."""
    for table in TABLES:
        for name, test in vars(table).items():
            if name.startswith("test_") and list(inspect.signature(test).parameters) == ["key"]:
                yield test


def caught_by_tables(law: Law) -> str:
    """The first row that fails, or ""."""
    for row in rows():
        try:
            row(Key(law))
        except Exception:
            return row.__name__
    return ""


def test_the_real_law_passes_the_tables() -> None:
    assert sum(1 for _ in rows()) > 100
    assert caught_by_tables(REAL) == ""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.breaks)
def test_the_tables_catch_each_wrong_law(mutant: Mutant) -> None:
    assert caught_by_tables(mutant.law())
