"""Where an option comes from."""

import logging
import os
import uuid
from collections.abc import Iterator
from typing import Literal, Self

import pytest
from pydantic import model_validator

from grelmicro_fastapi import settings
from grelmicro_fastapi.errors import SettingsValidationError
from grelmicro_fastapi.settings import Duration, Jitter, Settings, Worker, environment, read_env, resolve


class Options(Settings):
    worker: Worker | None = None
    lease_duration: Duration = 60
    retry_interval: Duration = 0.1
    retry_jitter: Jitter = 0.1
    on_lost: Literal["fail", "cancel"] = "fail"

    @model_validator(mode="after")
    def _retries_within_the_lease(self) -> Self:
        if self.retry_interval > self.lease_duration:
            raise ValueError("retry_interval must not be longer than lease_duration")
        return self


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    for variable in [variable for variable in os.environ if variable.startswith("GREL_")]:
        monkeypatch.delenv(variable)
    settings.forget()
    yield monkeypatch
    settings.forget()


@pytest.fixture
def gate(clean_environment: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    clean_environment.setenv("GREL_ENV_LOAD", "1")
    return clean_environment


def lease(name: str = "catalog", **given: object) -> float:
    return resolve("LOCK", name, Options, given).lease_duration


def test_a_keyword_goes_before_the_names_variable_before_the_kinds_before_the_default(
    gate: pytest.MonkeyPatch,
) -> None:
    assert lease("first") == 60
    gate.setenv("GREL_LOCK_LEASE_DURATION", "30")
    assert lease("second") == 30
    gate.setenv("GREL_LOCK_THIRD_LEASE_DURATION", "15")
    assert lease("third") == 15
    assert lease("third", lease_duration=5) == 5
    assert lease("fourth") == 30


def test_the_kinds_do_not_read_each_others_variables(gate: pytest.MonkeyPatch) -> None:
    gate.setenv("GREL_READWRITELOCK_LEASE_DURATION", "30")
    assert lease() == 60
    assert resolve("READWRITELOCK", "catalog", Options, {}).lease_duration == 30


@pytest.mark.parametrize("word", ["1", "true", "yes", "on", "TRUE", " Yes "])
def test_a_truthy_gate_lets_the_environment_in(clean_environment: pytest.MonkeyPatch, word: str) -> None:
    clean_environment.setenv("GREL_LOCK_LEASE_DURATION", "30")
    assert lease() == 60
    clean_environment.setenv("GREL_ENV_LOAD", word)
    assert lease() == 30


@pytest.mark.parametrize("word", ["", "0", "false", "no", "off", "2", "enabled"])
def test_any_other_gate_keeps_it_out(clean_environment: pytest.MonkeyPatch, word: str) -> None:
    clean_environment.setenv("GREL_LOCK_LEASE_DURATION", "30")
    clean_environment.setenv("GREL_ENV_LOAD", word)
    assert lease() == 60


def test_env_load_overrules_the_gate_both_ways(clean_environment: pytest.MonkeyPatch) -> None:
    clean_environment.setenv("GREL_LOCK_LEASE_DURATION", "30")
    assert resolve("LOCK", "catalog", Options, {}, env_load=True).lease_duration == 30
    clean_environment.setenv("GREL_ENV_LOAD", "1")
    assert resolve("LOCK", "catalog", Options, {}, env_load=False).lease_duration == 60


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("orders", "GREL_LOCK_ORDERS_LEASE_DURATION"),
        ("order:7", "GREL_LOCK_ORDER_7_LEASE_DURATION"),
        ("my-lock.x/y", "GREL_LOCK_MY_LOCK_X_Y_LEASE_DURATION"),
        ("größe", "GREL_LOCK_GR__E_LEASE_DURATION"),
        ("brace{{d", "GREL_LOCK_BRACE__D_LEASE_DURATION"),
    ],
)
def test_a_name_is_written_in_upper_case_and_other_characters_become_underscores(
    gate: pytest.MonkeyPatch, name: str, variable: str
) -> None:
    gate.setenv(variable, "7")
    assert lease(name) == 7


def test_a_name_with_a_placeholder_reads_only_the_kinds_variables(gate: pytest.MonkeyPatch) -> None:
    gate.setenv("GREL_LOCK_ORDER__ORDER_ID__LEASE_DURATION", "7")
    assert lease("order:{order_id}") == 60
    gate.setenv("GREL_LOCK_LEASE_DURATION", "30")
    assert lease("order:{order_id}.v2") == 30


def test_an_empty_variable_counts_as_unset(gate: pytest.MonkeyPatch) -> None:
    gate.setenv("GREL_LOCK_CATALOG_LEASE_DURATION", "")
    gate.setenv("GREL_LOCK_LEASE_DURATION", "30")
    gate.setenv("REDIS_URL", "")
    assert lease() == 30
    assert read_env("REDIS_URL") is None
    gate.setenv("REDIS_URL", "redis://cache")
    assert read_env("REDIS_URL") == "redis://cache"


def test_without_keywords_the_same_frozen_object_comes_back(clean_environment: pytest.MonkeyPatch) -> None:
    closed = resolve("LOCK", "one", Options, {})
    assert resolve("LOCK", "two", Options, {}) is closed
    clean_environment.setenv("GREL_ENV_LOAD", "1")
    opened = resolve("LOCK", "one", Options, {})
    assert resolve("LOCK", "one", Options, {}) is opened
    with pytest.raises(ValueError, match="frozen"):
        opened.lease_duration = 1


def test_the_environment_is_read_once_per_kind_and_name(gate: pytest.MonkeyPatch) -> None:
    gate.setenv("GREL_LOCK_LEASE_DURATION", "30")
    assert lease() == 30
    gate.setenv("GREL_LOCK_LEASE_DURATION", "20")
    assert lease() == 30
    assert lease("another") == 20
    settings.forget()
    assert lease() == 20


def test_what_is_remembered_of_names_is_bounded(gate: pytest.MonkeyPatch) -> None:
    for number in range(settings._REMEMBERED + 10):
        lease(f"order:{number}")
    assert settings._environment_only.cache_info().currsize == settings._REMEMBERED


# -- values that cannot be ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["0", "-1", "0.0009", "nan", "inf", "-inf", "1e400", "9e99", "x7secret", "60s", " "])
def test_a_bad_variable_is_named_and_its_value_is_not_shown(gate: pytest.MonkeyPatch, value: str) -> None:
    gate.setenv("GREL_LOCK_BAD_LEASE_DURATION", value)
    with pytest.raises(SettingsValidationError, match=r"^GREL_LOCK_BAD_LEASE_DURATION: ") as raised:
        lease("bad")
    error = raised.value
    assert isinstance(error, ValueError)
    assert value == " " or value not in str(error).replace("0.001", "")
    assert error.__cause__ is None
    assert error.__context__ is None


def test_the_kinds_variable_is_named_when_it_is_the_bad_one(gate: pytest.MonkeyPatch) -> None:
    gate.setenv("GREL_LOCK_RETRY_JITTER", "1")
    with pytest.raises(SettingsValidationError, match=r"^GREL_LOCK_RETRY_JITTER: "):
        lease()


@pytest.mark.parametrize(
    "given",
    [
        {"lease_duration": 0},
        {"lease_duration": float("nan")},
        {"retry_jitter": 1},
        {"on_lost": "shrug"},
        {"worker": ""},
    ],
)
def test_a_bad_keyword_is_named(given: dict[str, object]) -> None:
    with pytest.raises(SettingsValidationError, match=rf"^{next(iter(given))}=: "):
        lease("catalog", **given)


def test_an_unknown_keyword_is_refused() -> None:
    with pytest.raises(SettingsValidationError, match="lease="):
        lease("catalog", lease=5)


def test_a_rule_on_several_options_names_all_that_were_set(gate: pytest.MonkeyPatch) -> None:
    gate.setenv("GREL_LOCK_LEASE_DURATION", "1.25")
    expected = r"^GREL_LOCK_LEASE_DURATION, retry_interval=: .*must not be longer than lease_duration$"
    with pytest.raises(SettingsValidationError, match=expected) as raised:
        lease("catalog", retry_interval=2.75)
    assert "1.25" not in str(raised.value)
    assert "2.75" not in str(raised.value)


def test_a_complaint_that_would_quote_the_value_is_not_passed_on(gate: pytest.MonkeyPatch) -> None:
    class Numbered(Settings):
        number: uuid.UUID | None = None

    gate.setenv("GREL_LOCK_NUMBER", "zebra")
    with pytest.raises(SettingsValidationError) as raised:
        resolve("LOCK", "catalog", Numbered, {})
    assert str(raised.value) == "GREL_LOCK_NUMBER: not a valid value"


def test_a_keyword_covers_a_bad_variable(gate: pytest.MonkeyPatch) -> None:
    gate.setenv("GREL_LOCK_LEASE_DURATION", "soon")
    assert lease("catalog", lease_duration=5) == 5


def test_every_bad_option_is_told_at_once(gate: pytest.MonkeyPatch) -> None:
    gate.setenv("GREL_LOCK_LEASE_DURATION", "soon")
    with pytest.raises(SettingsValidationError, match=r"GREL_LOCK_LEASE_DURATION: .*; on_lost=: "):
        lease("catalog", on_lost="shrug")


def test_a_worker_may_be_a_uuid() -> None:
    worker = uuid.uuid4()
    assert resolve("LOCK", "catalog", Options, {"worker": worker}).worker == str(worker)


@pytest.mark.parametrize("worker", ["a\nb", "a\x00", "\x7f", "x" * 257, 7])
def test_a_worker_is_short_text_without_control_characters(worker: object) -> None:
    with pytest.raises(SettingsValidationError, match=r"^worker=: "):
        resolve("LOCK", "catalog", Options, {"worker": worker})


# -- the warning -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", [None, "0"])
def test_a_variable_set_while_the_gate_is_off_is_warned_of_once_by_name(
    clean_environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, word: str | None
) -> None:
    if word is not None:
        clean_environment.setenv("GREL_ENV_LOAD", word)
    clean_environment.setenv("GREL_LOCK_LEASE_DURATION", "31.25")
    clean_environment.setenv("GREL_LOCK_CATALOG_WORKER", "s3cret")
    for _ in range(3):
        lease("orders")
    assert warned(caplog) == ["GREL_LOCK_LEASE_DURATION"]
    lease("catalog", retry_jitter=0)
    lease("catalog")
    assert warned(caplog) == ["GREL_LOCK_LEASE_DURATION", "GREL_LOCK_CATALOG_WORKER"]
    assert "31.25" not in caplog.text
    assert "s3cret" not in caplog.text


def test_a_variable_set_later_is_warned_of_too(
    clean_environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lease()
    assert not warned(caplog)
    clean_environment.setenv("GREL_LOCK_LEASE_DURATION", "30")
    lease()
    assert warned(caplog) == ["GREL_LOCK_LEASE_DURATION"]


def test_a_variable_that_was_warned_of_is_not_warned_of_again_when_another_comes(
    clean_environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clean_environment.setenv("GREL_LOCK_LEASE_DURATION", "30")
    lease()
    clean_environment.setenv("GREL_LOCK_WORKER", "me")
    lease()
    assert warned(caplog) == ["GREL_LOCK_LEASE_DURATION", "GREL_LOCK_WORKER"]


def test_an_opt_out_is_quiet(clean_environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    clean_environment.setenv("GREL_LOCK_LEASE_DURATION", "30")
    resolve("LOCK", "catalog", Options, {}, env_load=False)
    resolve("LOCK", "catalog", Options, {"worker": "me"}, env_load=False)
    assert not warned(caplog)


def test_nothing_is_warned_of_while_the_gate_is_open(
    gate: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate.setenv("GREL_LOCK_LEASE_DURATION", "30")
    lease()
    assert not warned(caplog)


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    records = [record for record in caplog.records if record.name == "grelmicro_fastapi.settings"]
    assert all(record.levelno == logging.WARNING for record in records)
    return [record.getMessage().split()[0] for record in records]


# -- where we run ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["production", "staging", "development", "test"])
def test_the_environment_has_four_names(clean_environment: pytest.MonkeyPatch, word: str) -> None:
    clean_environment.setenv("GREL_ENVIRONMENT", word.title())
    assert environment() == word


def test_an_unset_environment_is_none(clean_environment: pytest.MonkeyPatch) -> None:
    assert environment() is None
    clean_environment.setenv("GREL_ENVIRONMENT", "")
    assert environment() is None


@pytest.mark.parametrize("word", ["prod", "produktion", " "])
def test_any_other_environment_is_refused_by_name(clean_environment: pytest.MonkeyPatch, word: str) -> None:
    clean_environment.setenv("GREL_ENVIRONMENT", word)
    with pytest.raises(SettingsValidationError, match=r"^GREL_ENVIRONMENT must be") as raised:
        environment()
    assert f"'{word}'" not in str(raised.value)
