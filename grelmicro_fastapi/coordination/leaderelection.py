"""Leader election: one process of the fleet leads, and the others stand by."""

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Mapping
from typing import Self, TypedDict, Unpack, cast, final
from uuid import UUID

from pydantic import model_validator

from grelmicro_fastapi import context
from grelmicro_fastapi.context import Openable
from grelmicro_fastapi.coordination.backend import Source, check_source, crew_of
from grelmicro_fastapi.coordination.campaign import Campaign
from grelmicro_fastapi.coordination.coordination import Coordination
from grelmicro_fastapi.coordination.identity import default_worker
from grelmicro_fastapi.coordination.leadership import LeaderRecord, Leadership, note, read_record
from grelmicro_fastapi.coordination.names import LEADER, check_name
from grelmicro_fastapi.coordination.state import Mode
from grelmicro_fastapi.coordination.view import look
from grelmicro_fastapi.coordination.wish import Wish
from grelmicro_fastapi.errors import NotLeaderError, NotRunningError, SettingsValidationError
from grelmicro_fastapi.settings import Duration, Settings, Worker, resolve


class LeaderElectionOptions(TypedDict, total=False):
    """What may be given to `LeaderElection` by keyword. All lengths are seconds."""

    worker: str | UUID
    """Who stands, as operators see it. Random per process unless given; replicas may share one and never both lead."""
    lease_duration: float
    """How long the store keeps a silent leader, 15."""
    renew_deadline: float
    """After how long without a confirmed renewal a leader stops leading, 10. Less than `lease_duration`."""
    retry_interval: float
    """How often a leader renews, and how long a failed candidate pauses, 2. Less than `renew_deadline`."""
    backend_timeout: float
    """How long one renewal may take, 5. Less than `renew_deadline`."""


class LeaderElectionSettings(Settings):
    """The options with their defaults, as they are resolved."""

    worker: Worker | None = None
    lease_duration: Duration = 15.0
    renew_deadline: Duration = 10.0
    retry_interval: Duration = 2.0
    backend_timeout: Duration = 5.0

    @model_validator(mode="after")
    def _leaves_time_to_stop(self) -> Self:
        if not self.lease_duration > self.renew_deadline > self.retry_interval:
            raise ValueError("lease_duration must be longer than renew_deadline, and that longer than retry_interval")
        if self.backend_timeout >= self.renew_deadline:
            raise ValueError("backend_timeout must be shorter than renew_deadline")
        return self


@final
class LeaderElection(Openable):
    """One leader among all processes that stand under this name and share the store.

        election = LeaderElection("main")

        async with election:                       # stands as a candidate; resigns at the end
            await election.lead(sweep_for_ever)    # runs while this process leads, cancelled when it does not

    A process stops leading, locally and by a timer, before the store could let another one lead; what it did before
    is told apart by the term's fencing token. It does not promise that a body that ignores its cancellation stops.
    `backend` and `env_load` are those of `Lock`, but a `Coordination` may elect on another store than it locks on. The
    variables are `GREL_LEADERELECTION_{NAME}_*` and `GREL_LEADERELECTION_*`. `metadata` is shown to others in the
    record. Raises `ValueError` if an option is wrong.
    """

    def __init__(
        self,
        name: str,
        *,
        backend: Source | None = None,
        metadata: Mapping[str, str] | None = None,
        env_load: bool | None = None,
        **options: Unpack[LeaderElectionOptions],
    ) -> None:
        check_name(name)
        self.name = name
        self.metadata: dict[str, str] = _checked(metadata)
        self._source = check_source(backend)
        self._settings = resolve("LEADERELECTION", name, LeaderElectionSettings, dict(options), env_load=env_load)
        self._campaigns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Campaign] = weakref.WeakKeyDictionary()

    async def open(self) -> None:
        """Stand as a candidate on the running loop. Counted."""
        loop = asyncio.get_running_loop()
        campaign = self._campaigns.get(loop)
        if campaign:
            campaign.users += 1
            return
        campaign = self._campaigns[loop] = Campaign(crew_of(self._where()), self._wish(), self._settings.retry_interval)
        campaign.start()

    async def close(self) -> None:
        """Undo one `open` on the running loop; the last one resigns, when whatever leads has ended."""
        loop = asyncio.get_running_loop()
        campaign = self._campaigns.get(loop)
        if campaign is None:
            return
        campaign.users -= 1
        if not campaign.users:
            del self._campaigns[loop]
            await campaign.stop()

    def is_leader(self) -> bool:
        """Does this process lead at this moment? False from the moment another one could. Works in any thread."""
        return any(campaign.leading for campaign in list(self._campaigns.values()))

    def is_leader_confirmed_within(self, seconds: float) -> bool:
        """Does this process lead, and did the store confirm it no longer than so many seconds ago?"""
        leading = [campaign.leading for campaign in list(self._campaigns.values())]
        return any(leadership.confirmed_within(seconds) for leadership in leading if leadership)

    @property
    def leadership(self) -> Leadership | None:
        """The leadership of this process on the running loop, if it leads at this moment."""
        campaign = self._campaigns.get(asyncio.get_running_loop())
        return campaign.leading if campaign else None

    async def wait_for_leader(self) -> Leadership:
        """Wait until this process leads.

        Raises `NotRunningError` if it does not stand, `NotLeaderError` if it stops standing.
        """
        return await self.campaign().elected()

    async def wait_lose_leader(self) -> None:
        """Wait until this process does not lead. Returns at once if it does not."""
        if campaign := self._campaigns.get(asyncio.get_running_loop()):
            await campaign.deposed()

    async def lead(self, body: Callable[[Leadership], Awaitable[object]], *, repeat: bool = False) -> None:
        """Stand, and run `body(leadership)` once this process leads; step down when it ends or raises.

        The body is cancelled when the term is lost, also if the store hangs, and when this call is cancelled. With
        `repeat` the process stands again afterwards, and a lost term is no error; a body that raises ends it all the
        same. Without, a lost term raises `NotLeaderError`.
        """
        await self.open()
        try:
            while True:
                campaign = self.campaign()
                leadership = await campaign.elected()
                try:
                    await campaign.run(body, leadership)
                except NotLeaderError:
                    if not repeat:
                        raise
                finally:
                    campaign.resign()
                if not repeat:
                    return
        finally:
            await self.close()

    def resign(self) -> None:
        """End the term, when the bodies that lead have been cancelled and have ended; stand again after a pause."""
        if campaign := self._campaigns.get(asyncio.get_running_loop()):
            campaign.resign()

    async def record(self) -> LeaderRecord | None:
        """Ask the store who leads; None if nobody does. Raises `BackendError` if it does not say."""
        return read_record(await look(self._where(), LEADER + self.name))

    def campaign(self) -> Campaign:
        """The candidacy on the running loop. For the library's own rooms."""
        try:
            return self._campaigns[asyncio.get_running_loop()]
        except KeyError:
            raise NotRunningError(
                f"this process does not stand for {self.name!r} on this event loop: enter `async with election`"
            ) from None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def _where(self) -> Source | None:
        """A `Coordination` may elect its leaders on another store than it keeps its locks."""
        source = context.current().coordination if self._source is None else self._source
        return source.election if isinstance(source, Coordination) else self._source

    def _wish(self) -> Wish:
        settings = self._settings
        worker = settings.worker or default_worker()
        return Wish(
            self.name,
            LEADER + self.name,
            Mode.WRITE,
            settings.lease_duration,
            settings.retry_interval,
            retry_jitter=0.2,
            worker=worker,
            keep_alive=True,
            cancels=False,
            max_hold=None,
            note=note(worker, settings.lease_duration, self.metadata),
            trust=settings.renew_deadline,
            renew_every=settings.retry_interval,
            patience=settings.backend_timeout,
        )


def _checked(metadata: object) -> dict[str, str]:
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise SettingsValidationError(f"metadata= is a mapping of texts, not of type {type(metadata).__name__}")
    pairs = dict(cast("Mapping[object, object]", metadata))
    if not all(isinstance(part, str) for pair in pairs.items() for part in pair):
        raise SettingsValidationError("metadata= is a mapping of texts: each key and each value is text")
    return cast("dict[str, str]", pairs)
