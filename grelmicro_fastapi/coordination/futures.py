"""Futures that somebody else may have ended already."""

import asyncio
from typing import TypeVar

from grelmicro_fastapi.coordination.clock import Clock

T = TypeVar("T")


def settle(future: "asyncio.Future[T]", value: T) -> None:
    """Set the result, unless the future was cancelled or settled before."""
    if not future.done():
        future.set_result(value)


async def sleep(clock: Clock, seconds: float) -> None:
    """Wait on that clock."""
    await within(clock, seconds, asyncio.get_running_loop().create_future())


async def within(clock: Clock, seconds: float, future: "asyncio.Future[None]") -> None:
    """Wait for the future, but for no longer than so many seconds on that clock; then it is settled all the same."""
    timer = clock.call_later(seconds, lambda: settle(future, None))
    try:
        await future
    finally:
        timer.cancel()
