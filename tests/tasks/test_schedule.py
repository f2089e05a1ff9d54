"""When work is due."""

import math
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grelmicro_fastapi.errors import SettingsValidationError
from grelmicro_fastapi.tasks.schedule import Cron, Every

BERLIN = "Europe/Berlin"


def berlin(*fields: int, fold: int = 0) -> float:
    year, month, day, *time = fields
    return datetime(year, month, day, *time, tzinfo=ZoneInfo(BERLIN), fold=fold).timestamp()


def days(schedule: Cron, start: float, count: int) -> list[str]:
    found: list[str] = []
    for _ in range(count):
        start = schedule.after(start)
        found.append(datetime.fromtimestamp(start, ZoneInfo(BERLIN)).isoformat())
    return found


@given(st.integers(1, 10**7), st.floats(0, 4e9))
def test_an_interval_is_due_at_every_multiple_and_at_nothing_else(milliseconds: int, instant: float) -> None:
    every = Every(milliseconds / 1000)
    following, last = every.after(instant), every.latest(instant)
    assert last <= instant + 1e-5
    assert following > instant - 1e-5
    assert following - last == pytest.approx(every.seconds, abs=1e-5)


def test_a_multiple_is_its_own_latest_and_the_next_one_comes_after_it() -> None:
    assert Every(30).latest(1_800_000_000.0) == 1_800_000_000.0
    assert Every(30).after(1_800_000_000.0) == 1_800_000_030.0


@pytest.mark.parametrize("seconds", [0, -1, 0.0001, math.nan, math.inf])
def test_an_interval_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(SettingsValidationError, match="every="):
        Every(seconds)


def test_a_time_in_the_gap_of_spring_is_due_right_after_the_gap_and_once() -> None:
    nightly = Cron("30 2 * * *", BERLIN)
    assert days(nightly, berlin(2026, 3, 28, 12), 2) == ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]


def test_a_fixed_time_in_the_double_hour_of_autumn_is_due_once() -> None:
    nightly = Cron("30 2 * * *", BERLIN)
    assert days(nightly, berlin(2026, 10, 24, 12), 2) == ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]


def test_a_repeated_time_goes_on_through_both_hours_of_autumn() -> None:
    half_hourly = Cron("*/30 * * * *", BERLIN)
    assert days(half_hourly, berlin(2026, 10, 25, 1, 45), 5) == [
        "2026-10-25T02:00:00+02:00",
        "2026-10-25T02:30:00+02:00",
        "2026-10-25T02:00:00+01:00",
        "2026-10-25T02:30:00+01:00",
        "2026-10-25T03:00:00+01:00",
    ]


@given(st.datetimes(datetime(2024, 1, 1), datetime(2030, 1, 1)))
def test_looking_back_finds_what_looking_forward_from_there_leads_to(when: datetime) -> None:
    cron = Cron("17 3 * * *")
    instant = when.replace(tzinfo=UTC).timestamp()
    last = cron.latest(instant)
    assert last <= instant < cron.after(last)
    assert cron.latest(last) == last


def test_the_29th_of_february_is_found_from_any_year() -> None:
    leap = Cron("0 0 29 2 *")
    assert datetime.fromtimestamp(leap.after(datetime(2025, 3, 1, tzinfo=UTC).timestamp()), UTC).year == 2028


@pytest.mark.parametrize("expression", ["", "* * * *", "61 * * * *", "a b c d e", "0 0 31 2 *"])
def test_what_is_no_cron_expression_is_refused_by_its_text(expression: str) -> None:
    with pytest.raises(SettingsValidationError, match="not a cron expression"):
        Cron(expression)


@pytest.mark.parametrize("timezone", ["CEST", "Mars/Olympus", "../etc/passwd"])
def test_an_unknown_time_zone_is_refused_at_registration(timezone: str) -> None:
    with pytest.raises(SettingsValidationError, match="timezone="):
        Cron("0 3 * * *", timezone)


def test_every_tick_of_a_day_is_found_one_after_the_other() -> None:
    every = Every(3600)
    start = datetime(2026, 5, 1, tzinfo=UTC)
    found = [start.timestamp()]
    while len(found) < 25:
        found.append(every.after(found[-1]))
    assert found[-1] == (start + timedelta(days=1)).timestamp()
