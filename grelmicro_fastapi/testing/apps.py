"""Apps under test: with a store in memory instead of their own."""

from collections.abc import Generator
from contextlib import contextmanager

from starlette.applications import Starlette

from grelmicro_fastapi.app.grelmicro import Grelmicro
from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.providers.memory import MemoryProvider
from grelmicro_fastapi.web.install import installed_in


@contextmanager
def memory_app(app: Starlette, *, clock: Clock | None = None) -> Generator[MemoryProvider, None, None]:
    """Inside, the app keeps its states in memory when it is opened, and connects to none of its own stores.

        with memory_app(app) as memory:
            async with async_client(app) as client: ...

    Raises `LookupError` if no `Grelmicro` is installed in the app, nor given to it as `lifespan=micro.lifespan`.
    """
    micro = installed_in(app) or getattr(app.router.lifespan_context, "__self__", None)
    if not isinstance(micro, Grelmicro):
        raise LookupError("no Grelmicro is in this app: micro.install(app), or FastAPI(lifespan=micro.lifespan)")
    memory = MemoryProvider(clock=clock)
    with micro.standing_in(memory):
        yield memory
