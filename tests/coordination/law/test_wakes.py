"""Whom a step tells, when they should look again, and what those who only look can see."""

from grelmicro_fastapi.coordination.state import Downgrade, Leave, Mode, Poison, Renew, Seat, Verdict, Writer

from .key import Key


def test_nobody_is_told_while_nobody_waits(key: Key) -> None:
    key.write("a")
    assert key.release("a").wakes == ()


def test_a_leaving_writer_calls_the_first_writer_and_sets_the_alarm_of_the_second(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.write("c", "q/w")
    key.write("d", "r/w")
    assert key.release("a").wakes == (("p/w", 0), ("q/w", 250))
    assert [seat.called for seat in key.state.seats] == [key.now + 250, 0, 0]


def test_a_called_seat_is_told_once(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.release("a")
    assert key.read("c", "q/r").wakes == ()


def test_without_a_second_writer_the_readers_behind_get_the_alarm(key: Key) -> None:
    key.read("a")
    key.write("b", "p/w")
    key.read("c", "q/r")
    key.read("d", "r/r")
    assert key.release("a").wakes == (("p/w", 0), ("q/r", 250), ("r/r", 250))


def test_the_second_writer_gets_the_alarm_past_lapsed_ones_and_readers(key: Key) -> None:
    key.read("a")
    key.write("b", "p/w")
    key.read("c", "q/r")
    key.write("d", "r/w")
    assert key.release("a").wakes == (("p/w", 0), ("r/w", 250))


def test_a_leaving_writer_calls_readers_first_and_alarms_the_writers_for_their_end(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.read("c", "q/r")
    key.write("d", "r/w")
    key.read("e", "s/r")
    assert key.release("a").wakes == (("q/r", 0), ("s/r", 0), ("p/w", 250), ("r/w", 250))


def test_the_alarm_waits_for_the_longest_turn(key: Key) -> None:
    key.write("a")
    key.read("c", "q/r")
    key.read("d", "s/r")
    key.write("b", "p/w")
    key.state.seats[0].grace = 900
    assert key.release("a").wakes == (("q/r", 0), ("s/r", 0), ("p/w", 900))
    key.later(100)
    assert key.leave("x").wakes == (("p/w", 800),)


def test_a_downgrade_calls_the_readers_and_the_last_reader_to_leave_the_writer(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.read("c", "q/r")
    assert key.ask(Downgrade("a", 1000)).wakes == (("q/r", 0),)
    key.read("c", "q/r")
    assert key.release("a").wakes == ()
    assert key.release("c").wakes == (("p/w", 0),)


def test_when_turns_are_open_and_nobody_reads_the_writer_is_reminded(key: Key) -> None:
    key.write("a")
    key.read("c", "q/r")
    key.read("d", "r/r")
    key.write("b", "p/w")
    key.release("a")
    key.read("d", "r/r")
    key.later(100)
    assert key.release("d").wakes == (("p/w", 150),)


def test_a_burial_tells_whoever_it_frees(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.later(1000)
    assert key.ask(Renew("x", 1)).wakes == (("p/w", 0),)


def test_an_undo_tells_whoever_it_frees(key: Key) -> None:
    key.read("a")
    key.write("b", "p/w")
    assert key.undo("a").wakes == (("p/w", 0),)


def test_a_withdrawal_tells_whoever_it_frees(key: Key) -> None:
    key.read("a")
    key.write("b", "p/w")
    key.read("c", "q/r")
    key.read("d", "r/r")
    assert key.ask(Leave("p/w")).wakes == (("q/r", 0), ("r/r", 0))
    assert [seat.turn for seat in key.state.seats] == [False, False]
    assert key.leave("x").wakes == ()


def test_a_withdrawal_of_the_called_writer_calls_the_next(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.write("c", "q/w")
    key.release("a")
    assert key.ask(Leave("p/w")).wakes == (("q/w", 0),)


def test_a_lapse_is_noticed_by_the_next_step_whatever_it_is(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.write("c", "q/w")
    key.release("a")
    key.later(250)
    assert key.read("x", "z/r").wakes == (("q/w", 0), ("z/r", 250))


def test_a_refusal_calls_the_one_who_is_in_the_way(key: Key) -> None:
    key.state.seats.append(Seat("p/w", Mode.WRITE, key.now + 3000))
    reply = key.write("c", "q/w")
    assert reply.verdict is Verdict.HELD
    assert reply.wakes == (("p/w", 0), ("q/w", 250))
    assert reply.retry == 250


def test_nobody_is_called_under_a_writer(key: Key) -> None:
    key.write("a")
    assert key.write("b", "p/w").wakes == ()
    assert key.read("c", "q/r").wakes == ()
    assert [seat.called for seat in key.state.seats] == [0, 0]


def test_a_reader_is_called_past_a_lapsed_writer(key: Key) -> None:
    key.read("a")
    key.write("b", "p/w")
    key.release("a")
    key.read("c", "q/r")
    key.later(250)
    assert key.leave("x").wakes == (("q/r", 0),)


def test_retry_is_when_the_lease_in_the_way_ends(key: Key) -> None:
    key.write("a", ttl=800)
    key.later(100)
    assert key.read("b").retry == key.write("c").retry == 700


def test_retry_of_a_writer_is_when_the_last_reader_ends(key: Key) -> None:
    key.read("a", ttl=800)
    key.read("b", ttl=500)
    assert key.write("c").retry == 800


def test_retry_is_when_the_called_one_lapses(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.release("a")
    key.later(50)
    assert key.write("c", "q/w").retry == key.read("d", "q/r").retry == 200


def test_retry_is_when_the_uncalled_one_would_lose_its_place(key: Key) -> None:
    key.read("a", ttl=9000)
    key.write("b", "p/w")
    key.later(100)
    assert key.read("c", "q/r").retry == 2900


def test_retry_is_when_the_turns_end_that_the_writer_waits_for(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.read("c", "q/r")
    key.release("a")
    key.later(50)
    assert key.write("b", "p/w").retry == key.read("d", "r/r").retry == 200


def test_a_refusal_that_time_does_not_change_has_no_retry(key: Key) -> None:
    key.undo("a")
    assert key.write("a").retry == 0
    assert key.write("b", expect=9).retry == 0
    assert key.write("c").retry == 0


def test_outlook_says_now_when_it_is_free(key: Key) -> None:
    assert key.outlook("p/w", Mode.WRITE) == key.outlook("p/r", Mode.READ) == 0


def test_outlook_sees_what_is_in_the_way(key: Key) -> None:
    key.write("a", ttl=800)
    assert key.outlook("p/r", Mode.READ) == key.outlook("p/w", Mode.WRITE) == 800
    key.release("a")
    key.read("b", ttl=700)
    assert key.outlook("p/r", Mode.READ) == 0
    assert key.outlook("p/w", Mode.WRITE) == 700
    key.write("c", "q/w")
    assert key.outlook("p/r", Mode.READ) == 3000


def test_outlook_looks_through_the_dead_and_changes_nothing(key: Key) -> None:
    key.state.writer = Writer("a", 0, key.now - 1)
    key.state.readers = {"b": key.now - 1}
    key.state.seats = [Seat("q/w", Mode.WRITE, key.now - 1)]
    assert key.outlook("p/w", Mode.WRITE) == 0
    assert key.state.writer is not None
    assert key.state.readers == {"b": key.now - 1}
    assert key.seats == ["q/w"]
    assert key.state.poisoned is False


def test_outlook_knows_the_queue(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.read("c", "q/r")
    key.release("a", Poison.KEEP)
    assert key.outlook("q/r", Mode.READ) == 0
    assert key.outlook("p/w", Mode.WRITE) == 250
    assert key.outlook("r/r", Mode.READ) == 250
