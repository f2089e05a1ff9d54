"""Calling what the user wrote, so that whatever leaves it is a value or an `Exception`."""

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
from anyio import to_thread


class Burst(Exception):  # noqa: N818  # it carries something that is no error
    """The body raised what would end the server: `SystemExit`, or another `BaseException`."""


async def call(body: Callable[..., Any], arguments: dict[str, Any], limiter: anyio.CapacityLimiter) -> None:
    """Call an `async` body here and a `def` body in a worker thread.

    A thread cannot be cancelled, so a cancellation waits until it returns.
    """
    acting = partial(_contained, partial(body, **arguments))
    is_async = inspect.iscoroutinefunction(body) or inspect.iscoroutinefunction(type(body).__call__)
    result = acting() if is_async else await _in_thread(acting, limiter)
    # A decorated body may be a `def` that returns what is to be awaited.
    if inspect.isawaitable(result):
        try:
            await result
        except (Exception, KeyboardInterrupt, asyncio.CancelledError):
            raise
        except BaseException as error:
            raise _burst(error) from error


def _contained(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except (Exception, KeyboardInterrupt, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise _burst(error) from error


def _burst(error: BaseException) -> Burst:
    return Burst(f"{type(error).__name__}: {error}")


async def _in_thread(act: Callable[[], Any], limiter: anyio.CapacityLimiter) -> Any:
    work = asyncio.ensure_future(to_thread.run_sync(act, limiter=limiter))
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled and not work.exception():
        raise cancelled
    return work.result()
