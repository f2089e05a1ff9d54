"""Random histories of one key against a small model that knows nothing of queues."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from grelmicro_fastapi.coordination import rules, turns
from grelmicro_fastapi.coordination.state import (
    GRAVE,
    Acquire,
    Command,
    Downgrade,
    Force,
    Leave,
    Mend,
    Mode,
    Poison,
    Release,
    Renew,
    Reply,
    State,
    Undo,
    Vacate,
    Verdict,
)

from .frozen import Step

TOKENS = st.sampled_from([f"t{n}" for n in range(6)])
CHANNELS = st.sampled_from(["", "a", "b", "c"])
MODES = st.sampled_from(Mode)
LENGTHS = st.sampled_from([100, 1000, 5000])


@dataclass
class Model:
    """What an honest clerk would write down: leases with their ends, graves, the fence and the poison."""

    fence: int = 0
    writer: str = ""
    until: int = 0
    found: bool = False
    poisoned: bool = False
    readers: dict[str, int] = field(default_factory=dict)
    graves: dict[str, int] = field(default_factory=dict)

    def pass_time(self, now: int) -> None:
        self.readers = {token: until for token, until in self.readers.items() if until > now}
        self.graves = {token: until for token, until in self.graves.items() if until > now}
        if self.writer and self.until <= now:
            self.writer, self.poisoned = "", True


class Histories(RuleBasedStateMachine):
    """Every rule asks the law, and the clerk whether that was right."""

    step: Step = staticmethod(rules.step)

    def __init__(self) -> None:
        super().__init__()
        self.state = State()
        self.model = Model()
        self.now = 1_000_000

    def ask(self, command: Command) -> Reply:
        self.model.pass_time(self.now)
        before = self.state.fence
        reply = self.step(self.state, command, self.now, 250)
        assert reply.fence == self.state.fence >= before
        assert {seat for seat, _ in reply.wakes} <= {seat.id for seat in self.state.seats} | {
            getattr(command, "seat", "")
        }
        return reply

    @rule(ms=st.sampled_from([1, 99, 100, 249, 250, 1000, 3000, GRAVE]))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(token=TOKENS, mode=MODES, ttl=LENGTHS, channel=CHANNELS, more=st.booleans())
    def acquires(self, token: str, mode: Mode, ttl: int, channel: str, more: bool) -> None:
        model, now = self.model, self.now
        seat = f"{channel}/{mode}" if channel else ""
        kept = [(other.id, other.until) for other in self.state.seats if other.until > now]
        free_at = turns.outlook(self.state, seat, mode, now)
        reply = self.ask(Acquire(token, mode, ttl, seat, more=more))
        writes = mode is Mode.WRITE
        if token in model.graves:
            assert reply.verdict is Verdict.BURIED
        elif token == model.writer or token in model.readers:
            if writes is not (token == model.writer):
                assert reply.verdict is Verdict.HELD
            else:
                self.confirmed(token, reply, ttl)
        elif model.writer or (writes and model.readers):
            assert reply.verdict is Verdict.HELD
            assert reply.retry == (model.until if model.writer else max(model.readers.values())) - now
        elif reply.verdict is Verdict.GRANTED:
            assert free_at == 0
            assert reply.poisoned is model.poisoned
            if writes:
                model.fence += 1
                model.writer, model.until, model.found, model.poisoned = token, now + ttl, model.poisoned, False
            else:
                model.readers[token] = now + ttl
        else:
            assert reply.verdict is Verdict.HELD
            assert any(other.id != seat for other in self.state.seats)
            assert reply.retry > 0
        if reply.verdict is Verdict.HELD and not seat:
            assert [(other.id, other.until) for other in self.state.seats] == kept
        assert not reply.seated or seat in {other.id for other in self.state.seats}

    def confirmed(self, token: str, reply: Reply, ttl: int) -> None:
        model = self.model
        assert reply.verdict is Verdict.GRANTED
        if token == model.writer:
            model.until = max(model.until, self.now + ttl)
            assert (reply.fence, reply.poisoned) == (model.fence, model.found)
        else:
            model.readers[token] = max(model.readers[token], self.now + ttl)
            assert reply.poisoned is model.poisoned

    @rule(token=TOKENS, ttl=LENGTHS)
    def renews(self, token: str, ttl: int) -> None:
        reply = self.ask(Renew(token, ttl))
        if token == self.model.writer or token in self.model.readers:
            self.confirmed(token, reply, ttl)
        else:
            assert reply.verdict is Verdict.GONE

    @rule(token=TOKENS, ttl=LENGTHS)
    def downgrades(self, token: str, ttl: int) -> None:
        model = self.model
        reply = self.ask(Downgrade(token, ttl))
        if token == model.writer:
            model.writer, model.readers[token] = "", model.until
        if token in model.readers:
            self.confirmed(token, reply, ttl)
        else:
            assert reply.verdict is Verdict.GONE

    @rule(token=TOKENS, poison=st.sampled_from(Poison))
    def releases(self, token: str, poison: Poison) -> None:
        model = self.model
        reply = self.ask(Release(token, 0, poison))
        assert (reply.verdict is Verdict.GRANTED) is (token == model.writer or token in model.readers)
        if token == model.writer:
            model.writer = ""
            model.poisoned = poison is Poison.SET or (poison is Poison.KEEP and model.found)
        model.readers.pop(token, None)

    @rule(token=TOKENS)
    def undoes(self, token: str) -> None:
        model = self.model
        reply = self.ask(Undo(token))
        assert (reply.verdict is Verdict.GRANTED) is (token == model.writer or token in model.readers)
        if token == model.writer:
            model.writer, model.poisoned = "", model.found
        model.readers.pop(token, None)
        model.graves[token] = self.now + GRAVE

    @rule(channel=CHANNELS, mode=MODES)
    def leaves(self, channel: str, mode: Mode) -> None:
        self.ask(Leave(f"{channel}/{mode}"))
        assert f"{channel}/{mode}" not in {seat.id for seat in self.state.seats}

    @rule()
    def operator_forces(self) -> None:
        model = self.model
        self.ask(Force())
        model.poisoned = model.poisoned or bool(model.writer)
        model.writer = ""
        model.readers.clear()

    @rule()
    def operator_mends(self) -> None:
        self.ask(Mend())
        self.model.poisoned = self.model.found = False

    @rule()
    def somebody_vacates(self) -> None:
        self.ask(Vacate())
        assert self.ask(Vacate()).verdict is Verdict.GONE

    @invariant()
    def the_clerk_agrees(self) -> None:
        state, model = self.state, self.model
        model.pass_time(self.now)
        writer = state.writer if state.writer and state.writer.until > self.now else None
        died = state.writer is not None and writer is None
        assert (writer.token if writer else "") == model.writer
        assert {token for token, until in state.readers.items() if until > self.now} == set(model.readers)
        assert not (writer and model.readers)
        assert state.fence == model.fence
        assert (state.poisoned or died) is model.poisoned

    @invariant()
    def a_seat_is_in_the_queue_once(self) -> None:
        names = [seat.id for seat in self.state.seats]
        assert len(names) == len(set(names))

    @invariant()
    def only_readers_have_turns(self) -> None:
        assert not any(seat.turn for seat in self.state.seats if seat.mode is Mode.WRITE)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
