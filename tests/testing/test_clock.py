"""The clock that tests hand in."""

import asyncio

import pytest

from grelmicro_fastapi.testing.clock import ManualClock

pytestmark = pytest.mark.anyio


async def test_time_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(now=10, wall=1_000)
    assert (clock.now(), clock.wall()) == (10, 1_000)
    await clock.advance(2.5)
    assert (clock.now(), clock.wall()) == (12.5, 1_002.5)


async def test_timers_are_called_in_order_each_at_its_own_moment() -> None:
    clock, calls = ManualClock(now=0), list[tuple[str, float]]()
    for name, delay in [("c", 3), ("a", 1), ("b", 2), ("late", 5), ("also b", 2)]:
        clock.call_later(delay, lambda name=name: calls.append((name, clock.now())))
    clock.call_later(2, lambda: calls.append(("cancelled", 0))).cancel()
    await clock.advance(4)
    assert calls == [("a", 1), ("b", 2), ("also b", 2), ("c", 3)]
    assert clock.now() == 4
    await clock.advance(1)
    assert calls[-1] == ("late", 5)


async def test_a_timer_set_by_a_timer_is_called_in_the_same_move() -> None:
    clock, beats = ManualClock(now=0), list[float]()

    def beat() -> None:
        beats.append(clock.now())
        clock.call_later(1, beat)

    clock.call_later(1, beat)
    await clock.advance(3.5)
    assert beats == [1, 2, 3]


async def test_what_is_due_at_once_needs_no_move() -> None:
    clock, called = ManualClock(), asyncio.Event()
    clock.call_later(0, called.set)
    clock.call_later(-1, called.clear).cancel()
    await clock.settle()
    assert called.is_set()


async def test_a_jump_calls_nobody_until_time_goes_on() -> None:
    clock, called = ManualClock(now=0), list[float]()
    clock.call_later(1, lambda: called.append(clock.now()))
    clock.jump(10)
    await clock.settle()
    assert (called, clock.now()) == ([], 10)
    await clock.advance(0)
    assert called == [10]


async def test_time_does_not_go_back_but_the_wall_clock_may() -> None:
    clock = ManualClock(now=5, wall=100)
    with pytest.raises(ValueError, match="negative"):
        await clock.advance(-1)
    with pytest.raises(ValueError, match="negative"):
        clock.jump(-1)
    clock.step_wall(-50)
    assert (clock.now(), clock.wall()) == (5, 50)
