import pytest

from .key import Key


@pytest.fixture
def key() -> Key:
    return Key()
