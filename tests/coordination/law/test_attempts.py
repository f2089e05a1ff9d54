"""An attempt is one acquisition, named by its token: asked again it is the same grant, undone it never comes back."""

from copy import deepcopy

from grelmicro_fastapi.coordination.state import GRAVE, VERSION, Mode, Renew, State, Verdict

from .key import Key


def test_a_resend_is_the_same_grant(key: Key) -> None:
    first = key.write("a")
    key.later(400)
    again = key.write("a")
    assert (again.verdict, again.fence, again.poisoned) == (first.verdict, first.fence, first.poisoned)
    assert key.state.fence == 1


def test_a_resend_extends_the_lease_and_never_shortens_it(key: Key) -> None:
    key.write("a")
    key.later(400)
    key.write("a", ttl=100)
    assert key.state.writer is not None
    assert key.state.writer.until == key.now + 600
    key.write("a", ttl=5000)
    assert key.state.writer.until == key.now + 5000


def test_a_resent_read_extends_and_never_shortens(key: Key) -> None:
    key.read("a")
    key.later(400)
    assert key.read("a", ttl=100).verdict is Verdict.GRANTED
    assert key.state.readers == {"a": key.now + 600}
    key.read("a", ttl=5000)
    assert key.state.readers == {"a": key.now + 5000}


def test_a_resend_reports_the_poison_that_the_grant_found(key: Key) -> None:
    key.write("dead")
    key.later(1000)
    assert key.write("a").poisoned is True
    assert key.write("a").poisoned is True
    assert key.ask(Renew("a", 1000)).poisoned is True


def test_a_resend_gives_the_seat_up_too(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.release("a")
    key.write("b", "p/w", more=True)
    assert key.write("b", "p/w", more=True).seated is True
    assert key.write("b", "p/w").seated is False
    assert key.seats == []


def test_a_resent_read_says_whether_its_seat_is_still_in_the_queue(key: Key) -> None:
    key.write("a")
    key.read("b", "p/r")
    key.release("a")
    assert key.read("b", "p/r", more=True).seated is True
    assert key.read("b", "p/r", more=True).seated is True
    assert key.read("b", "p/r").seated is False
    assert key.seats == []


def test_more_cannot_make_a_seat_out_of_nothing(key: Key) -> None:
    assert key.read("a", "p/r", more=True).seated is False
    key.write("w", "q/w")
    assert key.read("a", "p/r", more=True).seated is False


def test_an_attempt_has_one_mode(key: Key) -> None:
    key.write("a")
    assert key.read("a", "p/r").verdict is Verdict.HELD
    assert key.seats == []
    key.release("a")
    key.read("b")
    reply = key.write("b", "p/w")
    assert (reply.verdict, reply.seated, reply.retry) == (Verdict.HELD, False, 1000)
    assert key.seats == []


def test_after_its_end_a_token_is_a_new_grant_with_a_new_fence(key: Key) -> None:
    key.write("a")
    key.release("a")
    assert key.write("a").fence == 2


def test_an_undone_token_is_refused_for_as_long_as_a_request_can_be_on_its_way(key: Key) -> None:
    key.undo("a")
    key.later(GRAVE - 1)
    assert key.write("a").verdict is Verdict.BURIED
    assert key.read("a", "p/r").verdict is Verdict.BURIED
    assert key.seats == []
    key.later(1)
    assert key.write("a").verdict is Verdict.GRANTED


def test_a_grave_refuses_before_anything_else(key: Key) -> None:
    key.undo("a")
    assert key.write("a", expect=7).verdict is Verdict.BURIED


def test_undo_again_keeps_the_grave_open(key: Key) -> None:
    key.undo("a")
    key.later(GRAVE - 1)
    key.undo("a")
    key.later(GRAVE - 1)
    assert key.write("a").verdict is Verdict.BURIED


def test_undo_takes_a_write_back(key: Key) -> None:
    key.write("a")
    assert key.undo("a").verdict is Verdict.GRANTED
    assert key.state.writer is None
    assert key.state.poisoned is False
    assert key.write("b").fence == 2


def test_undo_takes_a_read_back(key: Key) -> None:
    key.read("a")
    key.read("b")
    assert key.undo("a").verdict is Verdict.GRANTED
    assert list(key.state.readers) == ["b"]


def test_undo_gives_back_the_poison_that_the_grant_took_over(key: Key) -> None:
    key.write("dead")
    key.later(1000)
    key.write("a")
    assert key.state.poisoned is False
    key.undo("a")
    assert key.state.poisoned is True


def test_undo_of_what_was_never_granted_only_digs_the_grave(key: Key) -> None:
    key.write("a")
    assert key.undo("b").verdict is Verdict.GONE
    assert key.state.writer is not None
    assert key.state.graves == {"b": key.now + GRAVE}


def test_undo_does_not_end_a_poison_that_came_from_a_death(key: Key) -> None:
    key.write("a")
    key.later(1000)
    assert key.undo("a").verdict is Verdict.GONE
    assert key.state.poisoned is True


def test_a_state_of_a_newer_law_is_refused_and_left_alone(key: Key) -> None:
    key.state = State(fence=9, version=VERSION + 1, readers={"old": 1})
    before = deepcopy(key.state)
    reply = key.write("a")
    assert (reply.verdict, reply.fence) == (Verdict.NEWER, 0)
    assert key.state == before


def test_a_state_of_this_law_or_an_older_one_is_read(key: Key) -> None:
    key.state = State(version=VERSION - 1)
    assert key.law.step(key.state, Renew("a", 1), 5, 1).verdict is Verdict.GONE
    assert key.outlook("p/w", Mode.WRITE) == 0
