"""What one loop has open of an app."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from grelmicro_fastapi.coordination.backend import Backend
from grelmicro_fastapi.coordination.coordination import Coordination
from grelmicro_fastapi.coordination.crew import Crew
from grelmicro_fastapi.coordination.leaderelection import LeaderElection
from grelmicro_fastapi.tasks.tasks import Tasks


class Runtime:
    """The app as one loop has it open. Requests find it in their state under "grelmicro"."""

    def __init__(
        self, coordination: Coordination | None, elections: Mapping[str, LeaderElection], tasks: Sequence[Tasks]
    ) -> None:
        self.coordination = coordination
        self.elections = elections
        """Those among the app's parts, and those of its `Tasks`, by name."""
        self.tasks = tasks
        self.crews: dict[Backend, Crew] = {}
        """Who works for each store."""
        self.notes: list[str] = []
        """What whoever runs the service should know of it."""
        self.draining = False
        """True from the moment the server was told to stop, or the lifespan ends."""


class Opened:
    """A runtime, what it takes to close it, and how many opened it."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.crews = runtime.crews
        self.opens: Counter[Crew] = Counter()
        """How often we opened the provider of each."""
        self.stack = AsyncExitStack()
        self.users = 0
        self.ready = False
        self.turn = asyncio.Lock()
