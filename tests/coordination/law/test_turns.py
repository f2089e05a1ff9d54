"""Who goes next: turns, the queue of writers, and those who are called and do not come."""

from grelmicro_fastapi.coordination.state import Downgrade, Mode, Poison, Renew, Seat, Verdict

from .key import Key, verdicts


def test_a_waiting_writer_holds_new_readers_back(key: Key) -> None:
    key.read("a")
    key.write("b", "p/w")
    assert verdicts(key.read("c"), key.read("d", "q/r")) == [Verdict.HELD, Verdict.HELD]


def test_a_waiting_reader_holds_nobody_back_by_itself(key: Key) -> None:
    key.write("w")
    key.read("a", "p/r")
    key.release("w")
    key.later(250)
    assert key.write("b", "q/w").verdict is Verdict.GRANTED


def test_writers_are_served_in_order_of_arrival(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.write("c", "q/w")
    key.release("a")
    assert verdicts(key.write("c", "q/w"), key.write("d"), key.write("b", "p/w")) == ["held", "held", "granted"]


def test_a_leaving_writer_gives_the_waiting_readers_their_turn(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.read("c", "q/r")
    key.read("d", "r/r")
    key.release("a")
    assert key.write("b", "p/w").verdict is Verdict.HELD
    assert key.read("c", "q/r").verdict is Verdict.GRANTED
    key.release("c")
    assert key.write("b", "p/w").verdict is Verdict.HELD
    assert key.read("d", "r/r").verdict is Verdict.GRANTED
    key.release("d")
    assert key.write("b", "p/w").verdict is Verdict.GRANTED


def test_readers_who_come_after_the_writer_left_have_no_turn(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.read("c", "q/r")
    key.release("a")
    assert key.read("d", "r/r").verdict is Verdict.HELD
    assert [(seat.id, seat.turn) for seat in key.state.seats] == [("p/w", False), ("q/r", True), ("r/r", False)]


def test_every_way_in_which_a_writer_leaves_gives_turns(key: Key) -> None:
    def undo() -> None:
        key.undo("a")

    def downgrade() -> None:
        key.ask(Downgrade("a", 1000))

    def die() -> None:
        key.later(1000)
        key.ask(Renew("x", 1))

    for leave in (undo, downgrade, die, lambda: key.release("a", Poison.KEEP)):
        key.state = type(key.state)()
        key.write("a")
        key.read("b", "p/r")
        leave()
        assert [seat.turn for seat in key.state.seats] == [True]


def test_a_cooldown_gives_turns_only_when_it_ends(key: Key) -> None:
    key.write("a")
    key.read("b", "p/r")
    assert key.release("a", min_hold=400).wakes == ()
    assert key.state.seats[0].turn is False
    key.later(400)
    assert key.read("x").verdict is Verdict.GRANTED
    assert key.state.seats[0].turn is True


def test_a_turn_belongs_to_the_seat_and_outlives_a_caller_who_gives_up(key: Key) -> None:
    key.write("a")
    key.read("b", "p/r")
    key.write("c", "q/w")
    key.release("a")
    key.undo("b")
    assert key.read("d", "p/r").verdict is Verdict.GRANTED


def test_every_reader_queued_in_the_process_enters_with_its_turn(key: Key) -> None:
    key.write("a")
    key.read("b", "p/r", more=True)
    key.read("c", "p/r")
    key.write("d", "q/w")
    key.release("a")
    assert verdicts(key.read("b", "p/r", more=True), key.read("c", "p/r")) == [Verdict.GRANTED, Verdict.GRANTED]
    assert key.read("e", "p/r").verdict is Verdict.HELD


def test_a_turn_that_is_not_taken_lapses_and_the_writer_goes(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.read("c", "q/r")
    key.release("a")
    key.later(249)
    assert key.write("b", "p/w").verdict is Verdict.HELD
    key.later(1)
    assert key.write("b", "p/w").verdict is Verdict.GRANTED


def test_a_lapsed_turn_still_lets_its_readers_in(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.read("c", "q/r")
    key.release("a")
    key.later(250)
    assert key.read("c", "q/r").verdict is Verdict.GRANTED


def test_a_turn_does_not_let_readers_in_beside_a_writer(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.read("c", "q/r")
    key.release("a")
    key.later(250)
    key.write("b", "p/w")
    assert key.read("c", "q/r").verdict is Verdict.HELD
    assert key.state.seats == [Seat("q/r", Mode.READ, key.now + 3000, turn=True, called=0, grace=500)]
    assert key.release("b").wakes == (("q/r", 0),)


def test_a_reader_with_a_turn_passes_a_waiting_writer(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.read("c", "q/r")
    key.release("a")
    assert key.read("c", "q/r").verdict is Verdict.GRANTED
    assert key.seats == ["p/w"]


def test_a_writer_behind_a_reader_does_not_hold_it_back(key: Key) -> None:
    key.read("a")
    key.write("b", "p/w")
    key.read("c", "q/r")
    key.write("d", "r/w")
    key.leave("p/w")
    assert key.read("x", "s/r").verdict is Verdict.HELD
    assert key.read("c", "q/r").verdict is Verdict.GRANTED


def test_a_reader_who_is_called_without_a_turn_does_not_hold_writers_back(key: Key) -> None:
    key.read("a")
    key.write("b", "p/w")
    key.read("c", "q/r")
    key.write("d", "r/w")
    key.leave("p/w")
    key.release("a")
    assert key.write("d", "r/w").verdict is Verdict.GRANTED


def test_a_called_writer_who_does_not_come_stops_holding_others_back(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.write("c", "q/w")
    key.release("a")
    key.later(249)
    assert key.write("c", "q/w").verdict is Verdict.HELD
    assert key.read("x").verdict is Verdict.HELD
    key.later(1)
    assert key.write("c", "q/w").verdict is Verdict.GRANTED
    assert key.seats == ["p/w"]


def test_one_who_lapsed_keeps_its_place_and_holds_others_back_once_it_asks(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.write("c", "q/w")
    key.release("a")
    key.later(250)
    key.write("c", "q/w")
    key.write("d", "r/w")
    key.write("b", "p/w")
    key.release("c")
    assert verdicts(key.write("d", "r/w"), key.write("b", "p/w")) == [Verdict.HELD, Verdict.GRANTED]


def test_a_lapsed_writer_may_still_enter_when_it_is_free(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.release("a")
    key.later(250)
    assert key.write("b", "p/w").verdict is Verdict.GRANTED


def test_the_window_is_the_claim_of_the_step_that_calls(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.ask(Renew("x", 1), 400)
    key.release("a")
    assert key.state.seats[0].called == key.now + 250


def test_a_writers_seat_that_was_kept_is_called_anew_and_comes_first(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.write("c", "q/w")
    key.release("a")
    assert key.write("b", "p/w", more=True).seated is True
    assert [(seat.id, seat.called) for seat in key.state.seats] == [("p/w", 0), ("q/w", 0)]
    key.later(400)
    assert key.release("b").wakes == (("p/w", 0), ("q/w", 250))
    assert verdicts(key.write("c", "q/w"), key.write("d", "p/w")) == [Verdict.HELD, Verdict.GRANTED]
    assert key.seats == ["q/w"]


def test_readers_who_wait_have_their_turn_before_a_seat_that_was_kept(key: Key) -> None:
    key.write("a")
    key.write("b", "p/w")
    key.release("a")
    key.write("b", "p/w", more=True)
    key.read("r", "q/r")
    key.release("b")
    assert verdicts(key.write("c", "p/w"), key.read("r", "q/r")) == [Verdict.HELD, Verdict.GRANTED]
    key.release("r")
    assert key.write("c", "p/w").verdict is Verdict.GRANTED


def test_readers_that_keep_the_turn_keep_its_window(key: Key) -> None:
    key.write("a")
    key.read("r", "p/r")
    key.write("b", "q/w")
    key.release("a")
    key.read("r", "p/r", more=True)
    key.release("r")
    assert key.write("b", "q/w").verdict is Verdict.HELD
    key.later(250)
    assert key.write("b", "q/w").verdict is Verdict.GRANTED
