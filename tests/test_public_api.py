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
def test_a_public_module_offers_what_is_listed_and_nothing_else(module: str) -> None:
    room = importlib.import_module(module)
    offered = getattr(room, "__all__", None) or [
        name for name, value in vars(room).items() if getattr(value, "__module__", None) == module and name[0] != "_"
    ]
    assert sorted(offered) == PUBLIC[module]


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in PUBLIC.items() for name in names])
def test_a_listed_name_can_be_imported(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)
