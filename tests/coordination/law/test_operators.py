"""The operator's commands, and the claim of a tick."""

from copy import deepcopy

from grelmicro_fastapi.coordination.state import Advance, Force, Leave, Poison, Purge, State, Vacate, Verdict, Writer

from .key import Key


def test_force_ends_a_write_and_poisons(key: Key) -> None:
    key.write("a")
    assert key.ask(Force()).verdict is Verdict.GRANTED
    assert key.state.poisoned is True
    assert key.write("b").fence == 2


def test_force_ends_every_read_without_poison(key: Key) -> None:
    key.read("a")
    key.read("b")
    assert key.ask(Force()).verdict is Verdict.GRANTED
    reply = key.write("c")
    assert (reply.verdict, reply.poisoned) == (Verdict.GRANTED, False)


def test_force_ends_a_cooldown_without_poison(key: Key) -> None:
    key.write("a")
    key.release("a", min_hold=500)
    assert key.ask(Force()).verdict is Verdict.GRANTED
    assert key.write("b").poisoned is False


def test_force_keeps_a_poison_that_a_cooldown_covers(key: Key) -> None:
    key.write("a")
    key.release("a", Poison.SET, min_hold=500)
    key.ask(Force())
    assert key.state.poisoned is True


def test_force_of_nothing_says_so_and_changes_nothing(key: Key) -> None:
    before = deepcopy(key.state)
    assert key.ask(Force()).verdict is Verdict.GONE
    assert key.state == before


def test_force_touches_and_calls_whoever_waits(key: Key) -> None:
    key.write("a")
    key.read("b", "p/r")
    key.later(5)
    assert key.ask(Force()).wakes == (("p/r", 0),)
    assert key.state.touched == key.now


def test_vacate_buries_and_says_whether_there_was_anything(key: Key) -> None:
    assert key.ask(Vacate()).verdict is Verdict.GONE
    for bury in (lambda: key.read("a"), lambda: key.write("b"), lambda: key.undo("c")):
        bury()
        assert key.ask(Vacate()).verdict is Verdict.GONE
        key.later(30_000)
        assert key.ask(Vacate()).verdict is Verdict.GRANTED
        assert key.ask(Vacate()).verdict is Verdict.GONE
    assert (key.state.readers, key.state.writer, key.state.graves) == ({}, None, {})
    assert key.state.poisoned is True


def test_vacate_buries_seats(key: Key) -> None:
    key.write("a", ttl=9000)
    key.write("b", "p/w")
    key.later(3000)
    assert key.ask(Vacate()).verdict is Verdict.GRANTED
    assert key.seats == []
    assert key.state.writer is not None


def test_vacate_does_not_count_as_use(key: Key) -> None:
    key.read("a")
    started = key.now
    key.later(1000)
    key.ask(Vacate())
    assert key.state.touched == started


def test_purge_drops_only_what_is_empty_and_idle(key: Key) -> None:
    key.write("a")
    key.release("a")
    key.later(99)
    assert key.ask(Purge(100)).verdict is Verdict.HELD
    key.later(1)
    assert key.ask(Purge(100)).verdict is Verdict.GRANTED


def test_purge_spares_whatever_is_in_use(key: Key) -> None:
    far = key.now + 10**6
    used = [
        State(writer=Writer("a", 0, far)),
        State(readers={"a": far}),
        State(graves={"a": far}),
        State(poisoned=True),
        State(fence=5, claimant="a"),
    ]
    for state in used:
        key.state = state
        assert key.ask(Purge(0)).verdict is Verdict.HELD
    key.state = State()
    assert key.ask(Purge(0)).verdict is Verdict.GRANTED


def test_purge_spares_a_name_somebody_waits_for(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.release("a")
    assert key.ask(Purge(0)).verdict is Verdict.HELD
    key.ask(Leave("p/w"))
    assert key.ask(Purge(0)).verdict is Verdict.GRANTED


def test_a_tick_is_claimed_once(key: Key) -> None:
    assert key.ask(Advance("a", key.now)).verdict is Verdict.GRANTED
    assert (key.state.fence, key.state.touched) == (key.now, key.now)
    assert key.ask(Advance("b", key.now)).verdict is Verdict.LATE
    assert key.ask(Advance("b", key.now - 1)).verdict is Verdict.LATE


def test_a_tick_is_confirmed_to_the_one_who_claimed_it(key: Key) -> None:
    key.ask(Advance("a", key.now))
    key.later(5)
    reply = key.ask(Advance("a", key.now - 5))
    assert (reply.verdict, reply.fence) == (Verdict.GRANTED, key.now - 5)
    assert key.state.touched == key.now - 5
    assert key.ask(Advance("a", key.now - 6)).verdict is Verdict.LATE


def test_a_tick_that_has_not_come_is_refused(key: Key) -> None:
    reply = key.ask(Advance("a", key.now + 1))
    assert (reply.verdict, reply.fence, key.state.fence) == (Verdict.EARLY, 0, 0)
    key.later(1)
    assert key.ask(Advance("a", key.now)).verdict is Verdict.GRANTED


def test_a_later_tick_may_be_claimed_by_another(key: Key) -> None:
    key.ask(Advance("a", key.now))
    key.later(10)
    assert key.ask(Advance("b", key.now)).verdict is Verdict.GRANTED
    assert key.ask(Advance("a", key.now - 10)).verdict is Verdict.LATE
