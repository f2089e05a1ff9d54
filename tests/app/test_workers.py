"""A store in memory is no lock between workers, and whoever starts several is told."""

import sys
from typing import Any

import pytest

from grelmicro_fastapi.app.grelmicro import Grelmicro
from grelmicro_fastapi.app.workers import workers
from grelmicro_fastapi.providers.memory import MemoryProvider
from grelmicro_fastapi.providers.sqlite import SqliteProvider

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("arguments", "environment", "count"),
    [
        ([], {}, 1),
        (["shop:app", "--workers", "4"], {}, 4),
        (["shop:app", "--workers=4", "--port", "80"], {}, 4),
        (["-w", "2", "shop:app"], {}, 2),
        ([], {"WEB_CONCURRENCY": "3"}, 3),
        (["--workers", "1"], {"WEB_CONCURRENCY": "3"}, 1),
        (["--workers"], {}, 1),
        (["--workers", "auto"], {"WEB_CONCURRENCY": ""}, 1),
        (["-w3", "shop:app"], {}, 3),
        (["-worse", "2"], {}, 1),
        (["shop:app"], {"GUNICORN_CMD_ARGS": "--workers=3 --bind '0.0.0.0:80'"}, 3),
        (["-w", "1", "shop:app"], {"GUNICORN_CMD_ARGS": "-w 3"}, 1),
    ],
)
def test_the_number_of_workers_is_read_as_servers_read_it(arguments: Any, environment: Any, count: int) -> None:
    assert workers(arguments, environment) == count


@pytest.mark.parametrize(
    ("store", "several", "told"), [("memory", "4", True), ("memory", "1", False), ("file", "4", False)]
)
async def test_several_workers_with_a_store_in_memory_are_told(
    store: str,
    several: str,
    told: bool,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(sys, "argv", ["uvicorn", "shop:app", "--workers", several])
    provider = MemoryProvider() if store == "memory" else SqliteProvider(tmp_path / "locks.sqlite")
    async with Grelmicro(uses=[provider]):
        pass
    assert ("locks of its own" in caplog.text) is told
