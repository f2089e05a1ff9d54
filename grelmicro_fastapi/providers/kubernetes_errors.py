"""What may go wrong between us and an API server, told apart by what may have happened."""

from grelmicro_fastapi.errors import BackendError


class ConflictError(BackendError):
    """Not written: somebody else has changed or created the Lease."""

    sent = False


class DoubtError(BackendError):
    """Perhaps written, now or later."""


class ExpiredError(BackendError):
    """The API server does not remember that far back."""

    sent = False


class ForbiddenError(BackendError):
    """The API server does not let us."""

    sent = False


def certain(message: str) -> BackendError:
    """Say that something failed, and that nothing was written."""
    error = BackendError(message)
    error.sent = False
    return error
