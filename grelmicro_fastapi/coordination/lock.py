"""A lock: one holder at a time, in the whole fleet."""

from typing import Unpack

from grelmicro_fastapi.coordination.backend import Source, check_source
from grelmicro_fastapi.coordination.guards import LockHandle
from grelmicro_fastapi.coordination.names import LOCK
from grelmicro_fastapi.coordination.options import LockOptions, wish
from grelmicro_fastapi.coordination.state import Mode
from grelmicro_fastapi.coordination.threads import ThreadView
from grelmicro_fastapi.coordination.view import View


class Lock(View[LockHandle]):
    """One holder at a time among all that share the store.

        async with Lock("order:7") as held:
            await save(order, fence=held.fencing_token)

    A value: making one asks nobody. `backend` is a provider, a `Coordination` or what `provider.lock()` returned;
    without it the one app that is open on the running loop answers. The options are those of `LockOptions`; what is
    not given is read from `GREL_LOCK_{NAME}_*` and `GREL_LOCK_*` if `GREL_ENV_LOAD` or `env_load` says so. Raises
    `ValueError` if the name or an option is not one.
    """

    def __init__(
        self,
        name: str,
        *,
        backend: Source | None = None,
        env_load: bool | None = None,
        **options: Unpack[LockOptions],
    ) -> None:
        super().__init__(wish("LOCK", LOCK, name, Mode.WRITE, options, env_load), check_source(backend), LockHandle)

    @property
    def from_thread(self) -> ThreadView[LockHandle]:
        """The same for code that runs in a thread: `with lock.from_thread as held`."""
        return ThreadView(self)
