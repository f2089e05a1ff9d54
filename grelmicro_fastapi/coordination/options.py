"""The options that locks share."""

from typing import Literal, TypedDict
from uuid import UUID

from grelmicro_fastapi.coordination.names import check_name
from grelmicro_fastapi.coordination.state import Mode
from grelmicro_fastapi.coordination.wish import Wish
from grelmicro_fastapi.settings import Duration, Jitter, Settings, Worker, resolve


class LockOptions(TypedDict, total=False):
    """What may be given to `Lock` and `ReadWriteLock` by keyword. All lengths are seconds."""

    worker: str | UUID | None
    """Who holds, as operators see it. Random per process unless given; never what ownership rests on."""
    lease_duration: float
    """How long a hold lasts without renewal, 60. Read and write leases alike."""
    retry_interval: float
    """How often to ask again where the store cannot wake us, 0.1."""
    retry_jitter: float
    """The share by which that interval varies, 0.1."""
    keep_alive: bool
    """Renew the lease as long as the guard is alive, False."""
    on_lost: Literal["fail", "cancel"]
    """`cancel` also cancels the task that acquired when the lease is lost; "fail"."""
    max_hold: float | None
    """The longest hold: then renewal stops and the guard is lost. None: no bound."""


class LockSettings(Settings):
    """The options with their defaults, as they are resolved."""

    worker: Worker | None = None
    lease_duration: Duration = 60.0
    retry_interval: Duration = 0.1
    retry_jitter: Jitter = 0.1
    keep_alive: bool = False
    on_lost: Literal["fail", "cancel"] = "fail"
    max_hold: Duration | None = None


def wish(kind: str, prefix: str, name: str, mode: Mode, options: LockOptions, env_load: bool | None) -> Wish:
    """Resolve the options of the lock of that name. Raises `ValueError` if the name or an option is not one."""
    check_name(name)
    settings = resolve(kind, name, LockSettings, dict(options), env_load=env_load)
    return Wish(
        name,
        prefix + name,
        mode,
        # The store must not keep for longer than that what nobody may hold any more.
        min(settings.lease_duration, settings.max_hold or settings.lease_duration),
        settings.retry_interval,
        settings.retry_jitter,
        settings.worker,
        settings.keep_alive,
        settings.on_lost == "cancel",
        settings.max_hold,
    )
