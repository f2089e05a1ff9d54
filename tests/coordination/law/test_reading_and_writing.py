"""Many readers or one writer, fences, and what a refusal leaves behind: nothing, or a place in the queue."""

from copy import deepcopy

from grelmicro_fastapi.coordination.state import Mode, Poison, Renew, Seat, Verdict

from .key import Key, verdicts


def test_readers_share(key: Key) -> None:
    assert verdicts(key.read("a"), key.read("b")) == [Verdict.GRANTED, Verdict.GRANTED]


def test_a_writer_excludes_readers_and_writers(key: Key) -> None:
    key.write("a")
    assert verdicts(key.read("b"), key.write("c")) == [Verdict.HELD, Verdict.HELD]


def test_a_reader_excludes_writers(key: Key) -> None:
    key.read("a")
    assert key.write("b").verdict is Verdict.HELD


def test_the_last_reader_to_leave_lets_the_writer_in(key: Key) -> None:
    key.read("a")
    key.read("b")
    key.release("a")
    assert key.write("c").verdict is Verdict.HELD
    key.release("b")
    assert key.write("c").verdict is Verdict.GRANTED


def test_each_write_raises_the_fence_by_one_and_reads_do_not(key: Key) -> None:
    fences = []
    for token in "abc":
        fences.append(key.write(token).fence)
        key.release(token)
        fences.append(key.read("r" + token).fence)
        key.release("r" + token)
    assert fences == [1, 1, 2, 2, 3, 3]


def test_every_reply_tells_the_fence(key: Key) -> None:
    key.write("a")
    assert key.read("b").fence == 1
    assert key.ask(Renew("x", 1)).fence == key.undo("x").fence == key.write("x").fence == key.leave("s").fence == 1
    assert key.release("a").fence == 1


def test_refused_without_a_seat_leaves_no_trace(key: Key) -> None:
    key.write("a")
    key.read("w", "q/r")
    before = deepcopy(key.state)
    key.later(5)
    for reply in (key.write("b"), key.read("b")):
        assert (reply.verdict, reply.seated) == (Verdict.HELD, False)
        assert key.state == before


def test_refused_with_a_seat_takes_a_place(key: Key) -> None:
    key.write("a")
    reply = key.read("b", "p/r", place=700)
    assert (reply.verdict, reply.seated) == (Verdict.HELD, True)
    assert key.state.seats == [Seat("p/r", Mode.READ, key.now + 700)]


def test_places_are_in_order_of_arrival_and_a_refresh_keeps_them(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.write("c", "q/w")
    key.later(500)
    assert key.write("b", "p/w").seated is True
    assert key.seats == ["p/w", "q/w"]
    assert key.state.seats[0].until == key.now + 3000


def test_a_place_that_is_not_refreshed_is_lost(key: Key) -> None:
    key.write("a", ttl=9000)
    key.write("b", "p/w")
    key.later(2999)
    key.ask(Renew("x", 1))
    assert key.seats == ["p/w"]
    key.later(1)
    key.ask(Renew("x", 1))
    assert key.seats == []


def test_only_the_dead_lose_their_place(key: Key) -> None:
    key.write("a", ttl=9000)
    key.write("b", "p/w")
    key.later(1)
    key.write("c", "q/w")
    key.later(2999)
    key.ask(Renew("x", 1))
    assert key.seats == ["q/w"]


def test_a_grant_gives_the_seat_up_unless_more_follow(key: Key) -> None:
    key.write("a")
    key.read("b", "p/r")
    key.release("a")
    assert key.read("b", "p/r", more=True).seated is True
    assert key.seats == ["p/r"]
    assert key.read("c", "p/r").seated is False
    assert key.seats == []


def test_a_grant_leaves_the_seats_of_others(key: Key) -> None:
    key.write("a")
    key.read("b", "p/r")
    key.read("c", "q/r")
    key.release("a")
    key.read("b", "p/r")
    assert key.seats == ["q/r"]


def test_leave_gives_the_seat_up_and_only_that(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.write("c", "q/w")
    assert key.leave("p/w").verdict is Verdict.GRANTED
    assert key.leave("p/w").verdict is Verdict.GRANTED
    assert key.seats == ["q/w"]


def test_expect_admits_a_writer_to_the_generation_it_knows(key: Key) -> None:
    key.write("a")
    key.release("a")
    assert key.write("b", expect=1).verdict is Verdict.GRANTED


def test_expect_of_another_generation_is_a_mismatch_and_changes_nothing(key: Key) -> None:
    key.write("a")
    key.release("a")
    before = deepcopy(key.state)
    for expect in (0, 2):
        reply = key.write("b", "p/w", expect=expect)
        assert (reply.verdict, reply.fence, reply.poisoned, reply.seated) == (Verdict.MISMATCH, 1, False, False)
        assert key.state == before


def test_expect_of_a_poisoned_generation_is_a_mismatch(key: Key) -> None:
    key.write("a")
    key.release("a", Poison.SET)
    reply = key.write("b", expect=1)
    assert (reply.verdict, reply.poisoned) == (Verdict.MISMATCH, True)


def test_expect_of_generation_nought_is_an_expectation(key: Key) -> None:
    assert key.write("a", expect=0).verdict is Verdict.GRANTED
    key.release("a")
    assert key.write("b", expect=0).verdict is Verdict.MISMATCH


def test_expect_waits_behind_readers_and_fails_behind_a_writer(key: Key) -> None:
    key.read("a")
    assert key.write("b", "p/w", expect=0).verdict is Verdict.HELD
    key.release("a")
    key.write("b", "p/w", expect=0)
    assert key.write("c", "q/w", expect=0).verdict is Verdict.MISMATCH


def test_a_resend_of_a_grant_is_confirmed_though_it_moved_the_fence_itself(key: Key) -> None:
    key.write("a", expect=0)
    assert key.write("a", expect=0).verdict is Verdict.GRANTED
