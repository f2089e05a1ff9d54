"""The judge of histories is judged: what cannot be true is found, and what can be is left alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_app.demo.history import Outcome, Update, faults

ACKNOWLEDGED, REFUSED, UNKNOWN = Outcome


def done(quantity: int, token: int, sent: float, ended: float, name: str = "apple") -> Update:
    return Update(name, sent, ended, ACKNOWLEDGED, quantity, token)


def failed(outcome: Outcome, sent: float, ended: float) -> Update:
    return Update("apple", sent, ended, outcome)


def judge(final: int, *updates: Update) -> list[str]:
    return faults(updates, {"apple": final})


def test_one_after_the_other_is_possible() -> None:
    assert judge(2, done(1, 1, 0, 1), done(2, 2, 2, 3)) == []


def test_updates_at_the_same_time_are_possible_in_either_order() -> None:
    assert judge(2, done(2, 2, 0, 3), done(1, 1, 1, 4)) == []


@pytest.mark.parametrize("final", [1, 2])
def test_an_update_without_an_answer_may_count_or_not(final: int) -> None:
    assert judge(final, done(1, 1, 0, 1), failed(UNKNOWN, 2, 3)) == []


def test_an_update_without_an_answer_may_count_long_after_its_client_gave_up() -> None:
    assert judge(3, failed(UNKNOWN, 0, 1), done(1, 2, 2, 3), done(3, 4, 4, 5)) == []


def test_tokens_may_be_left_out() -> None:
    assert judge(2, done(1, 3, 0, 1), done(2, 9, 2, 3)) == []


def test_names_are_counted_apart() -> None:
    history = [done(1, 5, 0, 1), done(1, 1, 2, 3, name="pear")]
    assert faults(history, {"apple": 1, "pear": 1}) == []


def test_two_updates_that_read_the_same_are_found_although_one_without_an_answer_fills_the_gap() -> None:
    assert judge(2, failed(UNKNOWN, 0, 9), done(1, 1, 0, 3), done(1, 2, 1, 4))


def test_a_token_given_twice_is_found() -> None:
    assert judge(2, done(1, 1, 0, 3), done(2, 1, 1, 4))


def test_a_lower_token_after_a_higher_one_was_answered_is_found() -> None:
    # Quantities alone would not tell: those without an answer may have been first.
    assert judge(3, failed(UNKNOWN, 0, 9), failed(UNKNOWN, 0, 9), done(3, 7, 1, 2), done(2, 6, 3, 4))


def test_an_acknowledged_update_that_is_not_there_in_the_end_is_found() -> None:
    assert judge(1, done(1, 1, 0, 1), done(2, 2, 2, 3))


def test_a_late_write_over_newer_ones_is_found_by_the_next_update() -> None:
    # One without an answer read 0, slept, and wrote 1 over the 2 that had been reached.
    late = failed(UNKNOWN, 0, 6)
    assert judge(2, late, done(1, 2, 1, 2), done(2, 3, 3, 4), done(2, 4, 7, 8))


def test_a_refused_update_that_counts_is_found() -> None:
    assert judge(2, done(1, 1, 0, 1), failed(REFUSED, 2, 3))


def test_an_update_that_counts_before_it_was_asked_for_is_found() -> None:
    assert judge(2, done(2, 1, 0, 1), failed(UNKNOWN, 2, 3))


def test_a_fault_says_of_which_name_it_is() -> None:
    (fault,) = judge(0, done(1, 1, 0, 1))
    assert fault.startswith("apple: ")
    assert "lost" in fault


@st.composite
def histories(draw: st.DrawFn, outcomes: tuple[Outcome, ...] = tuple(Outcome)) -> tuple[list[Update], int]:
    """What clients see of a counter that works: each update takes effect at one moment while it is asked for."""
    quantity, token, history = 0, 0, list[Update]()
    for moment in range(1, draw(st.integers(1, 12)) + 1):
        outcome = draw(st.sampled_from(outcomes))
        sent, ended = moment - draw(st.floats(0, 5)) - 0.1, moment + draw(st.floats(0, 5)) + 0.1
        token += draw(st.integers(1, 2))
        quantity += outcome is ACKNOWLEDGED or (outcome is UNKNOWN and draw(st.booleans()))
        known = outcome is ACKNOWLEDGED
        history.append(Update("apple", sent, ended, outcome, quantity if known else 0, token if known else 0))
    return history, quantity


@given(histories())
def test_whatever_a_correct_counter_shows_is_possible(shown: tuple[list[Update], int]) -> None:
    history, final = shown
    assert faults(history, {"apple": final}) == []


@given(histories(outcomes=(ACKNOWLEDGED,)), st.data())
def test_whichever_update_is_lost_it_is_found(shown: tuple[list[Update], int], data: st.DataObject) -> None:
    history, final = shown
    lost = data.draw(st.integers(0, len(history) - 1))
    seen = [one._replace(quantity=one.quantity - 1) if place > lost else one for place, one in enumerate(history)]
    assert faults(seen, {"apple": final - 1})
