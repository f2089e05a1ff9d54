"""Poison is a fact: a hold that died leaves it, a clean leave or the operator ends it."""

from grelmicro_fastapi.coordination.state import (
    Mend,
    Poison,
    Release,
    State,
    Verdict,
    Writer,
)

from .key import Key


def dies(key: Key, token: str = "dead") -> None:
    key.write(token)
    key.later(1000)


def test_a_writer_that_dies_poisons(key: Key) -> None:
    dies(key)
    assert key.read("a").poisoned is True


def test_a_reader_that_dies_does_not(key: Key) -> None:
    key.read("dead")
    key.later(1000)
    assert key.write("a").poisoned is False
    assert key.state.readers == {}


def test_the_next_writer_takes_the_poison_over(key: Key) -> None:
    dies(key)
    assert key.write("a").poisoned is True
    assert key.state.poisoned is False
    assert key.state.writer is not None
    assert key.state.writer.poisoned is True


def test_a_reader_sees_poison_and_leaves_it(key: Key) -> None:
    dies(key)
    assert key.read("a").poisoned is True
    assert key.read("a").poisoned is True
    key.release("a")
    assert key.write("b").poisoned is True


def test_a_clean_release_ends_it(key: Key) -> None:
    dies(key)
    key.write("a")
    key.release("a", Poison.CLEAR)
    assert key.write("b").poisoned is False


def test_a_release_after_an_error_keeps_it_as_it_was_found(key: Key) -> None:
    key.write("a")
    key.release("a", Poison.KEEP)
    assert key.state.poisoned is False
    dies(key)
    key.write("b")
    key.release("b", Poison.KEEP)
    assert key.state.poisoned is True


def test_a_writer_may_poison_on_purpose(key: Key) -> None:
    key.write("a")
    key.release("a", Poison.SET)
    assert key.write("b").poisoned is True


def test_a_second_death_keeps_it(key: Key) -> None:
    dies(key)
    dies(key, "dead too")
    assert key.write("a").poisoned is True


def test_a_release_that_comes_too_late_does_not_end_it(key: Key) -> None:
    dies(key, "a")
    assert key.release("a").verdict is Verdict.GONE
    assert key.state.poisoned is True


def test_mend_ends_it_whoever_holds(key: Key) -> None:
    dies(key)
    assert key.ask(Mend()).verdict is Verdict.GRANTED
    assert key.state.poisoned is False
    dies(key)
    key.write("a")
    key.ask(Mend())
    assert key.write("a").poisoned is False
    key.release("a", Poison.KEEP)
    assert key.state.poisoned is False


def test_min_hold_keeps_everybody_out_after_the_release(key: Key) -> None:
    key.write("a")
    key.later(100)
    assert key.release("a", min_hold=500).verdict is Verdict.GRANTED
    assert key.state.writer == Writer("", key.now - 100, key.now + 400)
    reply = key.write("b", "p/w")
    assert (reply.verdict, reply.retry) == (Verdict.HELD, 400)
    assert key.read("c").verdict is Verdict.HELD
    key.later(399)
    assert key.write("b", "p/w").verdict is Verdict.HELD
    key.later(1)
    assert key.write("b", "p/w").verdict is Verdict.GRANTED


def test_min_hold_is_counted_from_the_grant(key: Key) -> None:
    key.write("a")
    key.later(500)
    key.release("a", min_hold=500)
    assert key.state.writer is None


def test_the_end_of_a_cooldown_poisons_nobody(key: Key) -> None:
    key.write("a")
    key.release("a", min_hold=500)
    key.later(500)
    assert key.write("b").poisoned is False


def test_a_cooldown_does_not_lose_the_poison_said_before_it(key: Key) -> None:
    key.write("a")
    key.release("a", Poison.SET, min_hold=500)
    key.later(500)
    assert key.write("b").poisoned is True


def test_the_one_who_left_a_cooldown_has_no_more_say_in_it(key: Key) -> None:
    key.write("a")
    key.release("a", min_hold=500)
    assert key.release("a").verdict is Verdict.GONE
    assert key.undo("a").verdict is Verdict.GONE
    assert key.write("b").verdict is Verdict.HELD


def test_a_refused_release_does_not_touch(key: Key) -> None:
    key.ask(Release("a"))
    assert key.state == State()
