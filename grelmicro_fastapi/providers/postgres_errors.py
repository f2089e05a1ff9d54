"""What the driver and the server say when something goes wrong, and what it means."""

import asyncpg

from grelmicro_fastapi.errors import BackendError

ERRORS = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""All that the driver raises."""
# The statement failed and was rolled back, and the connection is as good as before.
_HARMLESS = ("22", "23", "40", "54", "55", "57014", "GM")
# So was this, but the connection may lead to the wrong place.
_REFUSED = ("25", "26", "3", "42")
_AGAIN = ("40001", "40P01")
_LOST = ("26000", "42P05")
_ODD = ("GM001", "25006")
_UNFIT = ("22", "54")
_MISSING = ("3F000", "42P01", "42883", "42704")


class AgainError(BackendError):
    """A serialization failure or a deadlock. Not applied, and asking again may succeed."""


class LostError(AgainError):
    """A statement that was prepared on another connection of a pooler's. Not applied."""


class OddError(BackendError):
    """Not read committed, or read only, by default. Not applied."""


class UnfitError(BackendError):
    """The database cannot hold this. Not applied."""


class MissingError(BackendError):
    """No such schema, table or function (any more). Not applied."""


def harmless(error: BaseException) -> bool:
    """Is it certain that the call was rolled back and the connection is clean?"""
    return code(error).startswith(_HARMLESS)


def unreachable(error: BaseException) -> BackendError:
    """Say why there is no connection. Nothing was sent."""
    wrapped = BackendError(f"PostgreSQL cannot be reached: {_reason(error)}")
    wrapped.sent = False
    return wrapped


def refused(error: BaseException) -> BackendError:
    """Say why there is no verdict, without the details: they may quote a token."""
    wrapped = _kind(error)(f"PostgreSQL gave no verdict: {_reason(error)}")
    # An error that the server reports in place of a result means that the transaction was rolled back, and what the
    # driver cannot encode was never sent.
    wrapped.sent = not (harmless(error) or code(error).startswith(_REFUSED) or isinstance(error, ValueError))
    return wrapped


def code(error: BaseException) -> str:
    """The SQLSTATE of a server's error, or nothing."""
    return error.sqlstate or "" if isinstance(error, asyncpg.PostgresError) else ""


def _kind(error: BaseException) -> type[BackendError]:
    state = code(error)
    if state in _LOST:
        return LostError
    if state in _AGAIN:
        return AgainError
    if state in _ODD:
        return OddError
    if state in _MISSING:
        return MissingError
    return UnfitError if isinstance(error, ValueError) or state.startswith(_UNFIT) else BackendError


def _reason(error: BaseException) -> str:
    if isinstance(error, asyncpg.PostgresError):
        return f"{type(error).__name__} ({error.sqlstate})"
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, OSError) and error.strerror:
        return f"{type(error).__name__} ({error.strerror})"
    return type(error).__name__
