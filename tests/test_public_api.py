"""The names that users may rely on. A change of `public_api.txt` is a change for users: it belongs in the changelog."""

import importlib
from pathlib import Path

import pytest

LISTED = Path(__file__).with_name("public_api.txt")


def listed() -> dict[str, list[str]]:
    """Module -> names, from lines such as `grelmicro_fastapi.errors BackendError`."""
    names: dict[str, list[str]] = {}
    for line in LISTED.read_text().splitlines():
        module, name = line.split()
        names.setdefault(module, []).append(name)
    return names


PUBLIC = listed()


def test_the_list_is_in_order_and_has_no_doubles() -> None:
    lines = LISTED.read_text().splitlines()
    assert lines == sorted(set(lines))


@pytest.mark.parametrize("module", PUBLIC)
def test_a_shop_window_shows_what_is_listed_and_nothing_else(module: str) -> None:
    shown = getattr(importlib.import_module(module), "__all__", None)
    assert shown is None or sorted(shown) == PUBLIC[module]


def test_every_error_is_listed() -> None:
    errors = importlib.import_module("grelmicro_fastapi.errors")
    defined = [name for name, value in vars(errors).items() if isinstance(value, type)]
    assert sorted(defined) == PUBLIC["grelmicro_fastapi.errors"]


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in PUBLIC.items() for name in names])
def test_a_listed_name_can_be_imported(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)
