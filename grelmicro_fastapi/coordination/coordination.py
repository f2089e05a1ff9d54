"""What an app uses for its locks."""

import logging
from typing import ClassVar, Literal, Protocol, get_args

from grelmicro_fastapi.context import Openable
from grelmicro_fastapi.coordination.backend import Backend
from grelmicro_fastapi.coordination.store import Scope
from grelmicro_fastapi.errors import BackendScopeError, SettingsValidationError
from grelmicro_fastapi.settings import environment

_log = logging.getLogger("grelmicro_fastapi.coordination")

Reach = Literal["process", "host", "cluster"]


class Opens(Protocol):
    """What a provider is to us: it has a backend, and can be opened and closed on each loop."""

    name: ClassVar[str]
    """What logs call it."""
    scope: ClassVar[Scope]
    """How far its word reaches."""

    @property
    def backend(self) -> Backend:
        """Where states are kept."""
        ...

    async def open(self) -> None:
        """Connect on the running loop."""
        ...

    async def close(self) -> None:
        """Undo one `open`."""
        ...


class Coordination(Openable):
    """Where the locks of an app are kept: `Grelmicro(uses=[Coordination(RedisProvider())])`.

    `requires` says how far the store must reach: "process", "host" (all processes of one machine) or "cluster". Where
    `GREL_ENVIRONMENT` is `production` or `staging`, a store that falls short is refused when it is opened; where it is
    unset, there is one warning; `development` and `test` are quiet. With `election`, leaders are elected on that store
    instead of `source`.
    """

    def __init__(self, source: Opens, *, requires: Reach = "cluster", election: Opens | None = None) -> None:
        for option, store in (("its store", source), ("election=", election or source)):
            if not (hasattr(store, "backend") and hasattr(store, "open")):
                raise SettingsValidationError(
                    f"a Coordination takes a provider as {option}, and no {type(store).__name__}: "
                    "provider_from_url() makes one of a URL"
                )
        self.source = source
        self.election = election or source
        """Where leaders are elected."""
        if requires not in get_args(Reach):
            raise SettingsValidationError(f"requires= is one of {', '.join(get_args(Reach))}, not {requires!r}")
        self._requires = Scope[requires.upper()]
        self._warned = False

    @property
    def backend(self) -> Backend:
        """Where states are kept."""
        return self.source.backend

    async def open(self) -> None:
        """Open the stores on the running loop. Counted, so a store may be shared.

        Raises `BackendScopeError` if one reaches less far than this environment needs, `SettingsValidationError` if
        `GREL_ENVIRONMENT` names none.
        """
        self._check_scope()
        await self.source.open()
        if self.election is not self.source:
            try:
                await self.election.open()
            except BaseException:
                await self.source.close()
                raise

    async def close(self) -> None:
        """Undo one `open`."""
        try:
            if self.election is not self.source:
                await self.election.close()
        finally:
            await self.source.close()

    def _check_scope(self) -> None:
        where = environment()
        for store in (self.source, self.election):
            if store.scope >= self._requires:
                continue
            name, reach = store.name, Scope(store.scope).name.lower()
            fact = f"the {name} store reaches one {reach} only"
            cure = (
                f"choose a store that reaches further, or say Coordination(..., requires={reach!r}) if that is enough"
            )
            if where in ("production", "staging"):
                raise BackendScopeError(f"{fact}, and GREL_ENVIRONMENT is {where}: {cure}")
            if where is None and not self._warned:
                self._warned = True
                _log.warning(
                    "%s: %s, and set GREL_ENVIRONMENT to development or test to hear no more of it", fact, cure
                )
