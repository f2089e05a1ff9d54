"""A lease: extended, turned into a read lease, given back."""

from grelmicro_fastapi.coordination.state import Downgrade, Mend, Poison, Renew, Verdict

from .key import Key


def test_renew_extends_a_live_lease_and_never_shortens(key: Key) -> None:
    key.write("a")
    key.later(400)
    assert key.ask(Renew("a", 100)).verdict is Verdict.GRANTED
    assert key.state.writer is not None
    assert key.state.writer.until == key.now + 600
    key.ask(Renew("a", 2000))
    assert key.state.writer.until == key.now + 2000


def test_renew_extends_a_reader_and_never_shortens(key: Key) -> None:
    key.read("a")
    key.later(400)
    assert key.ask(Renew("a", 100)).verdict is Verdict.GRANTED
    assert key.state.readers["a"] == key.now + 600
    key.ask(Renew("a", 2000))
    assert key.state.readers["a"] == key.now + 2000


def test_renew_neither_grants_nor_revives(key: Key) -> None:
    assert key.ask(Renew("a", 1000)).verdict is Verdict.GONE
    key.write("a")
    key.later(1000)
    assert key.ask(Renew("a", 1000)).verdict is Verdict.GONE
    assert key.state.writer is None


def test_a_lease_lives_until_its_end_and_not_at_it(key: Key) -> None:
    key.write("a")
    key.later(999)
    assert key.write("b").verdict is Verdict.HELD
    key.later(1)
    assert key.write("b").verdict is Verdict.GRANTED


def test_downgrade_makes_a_reader_under_the_same_fence_without_a_gap(key: Key) -> None:
    key.write("a", ttl=3000)
    reply = key.ask(Downgrade("a", 1000))
    assert (reply.verdict, reply.fence, reply.poisoned) == (Verdict.GRANTED, 1, False)
    assert key.state.writer is None
    assert key.state.readers == {"a": key.now + 3000}
    assert key.write("b").verdict is Verdict.HELD
    assert key.read("c").verdict is Verdict.GRANTED


def test_downgrade_may_lengthen_the_lease(key: Key) -> None:
    key.write("a")
    key.ask(Downgrade("a", 5000))
    assert key.state.readers == {"a": key.now + 5000}


def test_downgrade_asked_again_is_the_same_answer(key: Key) -> None:
    key.write("a")
    first = key.ask(Downgrade("a", 1000))
    key.later(300)
    again = key.ask(Downgrade("a", 1000))
    assert (again.verdict, again.fence) == (first.verdict, first.fence)
    assert key.state.readers == {"a": key.now + 1000}


def test_downgrade_publishes_so_poison_ends(key: Key) -> None:
    key.write("dead")
    key.later(1000)
    key.write("a")
    assert key.ask(Downgrade("a", 1000)).poisoned is False
    assert key.read("b").poisoned is False


def test_downgrade_of_a_lease_that_ended_is_refused(key: Key) -> None:
    key.write("a")
    key.later(1000)
    assert key.ask(Downgrade("a", 1000)).verdict is Verdict.GONE
    assert key.state.readers == {}


def test_release_frees_and_a_second_one_finds_nothing(key: Key) -> None:
    key.write("a")
    assert key.release("a").verdict is Verdict.GRANTED
    assert key.release("a").verdict is Verdict.GONE
    key.read("b")
    assert key.release("b").verdict is Verdict.GRANTED
    assert key.release("b").verdict is Verdict.GONE


def test_release_frees_nobody_else(key: Key) -> None:
    key.write("a")
    assert key.release("b", Poison.SET).verdict is Verdict.GONE
    assert key.state.writer is not None
    assert key.state.poisoned is False


def test_the_words_of_a_reader_do_not_poison(key: Key) -> None:
    key.read("a")
    key.release("a", Poison.SET)
    assert key.state.poisoned is False


def test_the_note_and_the_time_of_the_grant_are_kept(key: Key) -> None:
    key.write("a", note="nightly")
    assert key.state.writer is not None
    assert (key.state.writer.note, key.state.writer.since) == ("nightly", key.now)


def test_what_changes_a_key_touches_it_and_a_refusal_does_not(key: Key) -> None:
    key.write("a")
    started = key.now
    key.later(10)
    key.write("b")
    key.read("b", "p/r")
    key.ask(Renew("b", 1000))
    key.release("b")
    assert key.state.touched == started
    key.ask(Downgrade("a", 1000))
    assert key.state.touched == key.now
    key.later(10)
    key.release("a")
    assert key.state.touched == key.now
    key.later(10)
    key.undo("a")
    assert key.state.touched == key.now
    key.later(10)
    key.ask(Mend())
    assert key.state.touched == key.now
