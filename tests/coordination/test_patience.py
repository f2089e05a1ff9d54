"""One timer for many waits of the same length."""

import pytest

from grelmicro_fastapi.coordination.futures import Patience
from grelmicro_fastapi.testing.clock import ManualClock

pytestmark = pytest.mark.anyio


async def test_each_wait_ends_when_its_own_time_is_over() -> None:
    clock = ManualClock()
    patience = Patience(clock, 5.0)
    first = patience.future()
    await clock.advance(2)
    second = patience.future()
    await clock.advance(2.9)
    assert not first.done()
    await clock.advance(0.2)
    assert first.done()
    assert first.result() is None
    assert not second.done()
    await clock.advance(1.8)
    assert not second.done()
    await clock.advance(0.2)
    assert second.result() is None
    third = patience.future()
    await clock.advance(5.1)
    assert third.result() is None


async def test_a_wait_that_ended_before_stays_as_it_is_and_holds_up_no_other() -> None:
    clock = ManualClock()
    patience = Patience(clock, 5.0)
    answered, cancelled, late = patience.future(), patience.future(), patience.future()
    answered.set_result("an answer")
    cancelled.cancel()
    await clock.advance(5.1)
    assert answered.result() == "an answer"
    assert cancelled.cancelled()
    assert late.result() is None


async def test_what_is_over_is_not_remembered() -> None:
    clock = ManualClock()
    patience = Patience(clock, 5.0)
    for _ in range(1000):
        patience.future().set_result("an answer")
    assert len(patience._waits) <= 1
    assert len(clock._timers) == 1
    await clock.advance(5.1)
    assert not patience._waits
    assert not [timer for _, _, timer in clock._timers if timer.callback]


async def test_after_the_end_nobody_is_called_any_more() -> None:
    clock = ManualClock()
    patience = Patience(clock, 5.0)
    waiting = patience.future()
    patience.close()
    await clock.advance(6)
    assert not waiting.done()
