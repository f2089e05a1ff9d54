"""Nobody starves. A round is one write, in and out; a window is what a called seat gets to come."""

import pytest

from grelmicro_fastapi.coordination import rules

from .rounds import Company, longest


@pytest.mark.parametrize("seats", ["a/w b/w", "a/w b/w c/w", "a/w b/w c/w d/w", "a/w b/w c/r", "a/w b/w c/r d/r"])
def test_a_writer_is_in_when_each_other_writer_was_in_once(seats: str) -> None:
    company = tuple(seats.split())
    others = sum(seat.endswith("w") for seat in company) - 1
    wait = longest(rules.step, Company(company, "a/w"), writes=others)
    assert wait.situations > 1


@pytest.mark.parametrize("seats", ["a/w b/r", "a/w b/r c/r", "a/w a/r b/r b/w", "a/w b/r c/w", "a/w b/r c/w d/r"])
def test_a_reader_is_in_after_one_write_at_most(seats: str) -> None:
    longest(rules.step, Company(tuple(seats.split()), "b/r"), writes=1)


@pytest.mark.parametrize("seats", ["a/w b/r", "a/w b/r c/r", "a/w b/w c/r"])
def test_readers_pass_a_waiting_writer_only_on_a_turn(seats: str) -> None:
    company = tuple(seats.split())
    others = [seat[-1] for seat in company[1:]]
    longest(rules.step, Company(company, "a/w"), writes=99, reads=2 * others.count("r") * others.count("w"))


@pytest.mark.parametrize(
    "seats",
    [
        "m/w a/w",
        "m/w m/r a/r",
        "m/w m/r a/w",
        "m/w m/r a/w b/w",
        "m/w m/r a/w b/r",
        "m/w m/r a/r b/r",
        "m/w m/r a/w a/r",
    ],
)
def test_a_process_that_never_answers_costs_the_others_two_windows_at_most(seats: str) -> None:
    company = tuple(seats.split())
    for victim in company:
        if not victim.startswith("m"):
            others = sum(seat.endswith("w") for seat in company) - victim.endswith("w")
            longest(rules.step, Company(company, victim, mute="m"), writes=others, idle=2)


@pytest.mark.parametrize(
    ("seats", "late", "writes"),
    [("s/w a/w", 2, 3), ("s/w a/w", 4, 8), ("s/w a/w b/w", 2, 4), ("s/r a/w", 2, 2), ("s/r a/w b/w", 2, 2)],
)
def test_a_process_that_answers_late_gets_longer_windows_until_it_is_in(seats: str, late: int, writes: int) -> None:
    company = tuple(seats.split())
    longest(rules.step, Company(company, company[0], slow="s", late=late, hold=1), writes=writes, idle=late)


@pytest.mark.parametrize("seats", ["s/w a/w b/w", "s/w s/r a/w b/r"])
def test_a_process_that_answers_late_does_not_slow_the_others_to_its_pace(seats: str) -> None:
    company = tuple(seats.split())
    writes = sum(seat.endswith("w") for seat in company) - 1
    longest(rules.step, Company(company, "a/w", slow="s", late=8, hold=1), writes=writes, idle=2)
