"""Every error this library raises, on one page.

A message names the thing, the fact and the way out. It never holds a token, a password or the value of an
environment variable.
"""


class GrelmicroError(Exception):
    """The base of every error below except `EventLoopDeadlockError`."""


class CoordinationError(GrelmicroError):
    """Something about a lock, a guard or a leadership."""


class WouldBlockError(CoordinationError):
    """Somebody else holds it, and the caller asked not to wait."""


class LockTimeoutError(WouldBlockError, TimeoutError):
    """Somebody else held it until the caller's `timeout` was over. `retry_after` is a hint in seconds, or `None`."""

    retry_after: float | None = None


class LockNotOwnedError(CoordinationError):
    """The guard is released, or its lease ended: it proves nothing any more."""


class LockReentrantError(CoordinationError):
    """The same task already holds this lock: waiting for itself would never end."""


class LockUpgradeError(CoordinationError):
    """Write was asked for under a read: two such callers would wait for each other for ever."""


class BackendError(CoordinationError):
    """The store gave no verdict: it is down, too slow, or refused the connection.

    `sent` is False only where it is certain that the request never left this process: then there is nothing to undo.
    """

    sent: bool = True


class StaleGenerationError(CoordinationError):
    """A writer landed since the generation the caller expected, or the resource is poisoned.

    `current` is the generation now, or `None` while it is poisoned: nobody knows what it holds.
    """

    def __init__(self, message: str, current: int | None = None) -> None:
        super().__init__(message)
        self.current = current


class PreconditionRequiredError(CoordinationError):
    """This write must say which generation it expects, and did not."""


class NotLeaderError(CoordinationError):
    """This process does not lead."""


class DrainingError(CoordinationError):
    """This process is shutting down and takes no more locks."""


class QueueFullError(CoordinationError):
    """Too many callers in this process already wait for this name."""


class FencedError(CoordinationError):
    """The protected resource refused the fencing token: a newer holder has written. `name` is what was protected.

    Raised by your own code, where the resource checks the token. It is answered with 409 by a route with a guard, and
    by every route of an app that `Grelmicro` is installed in.

        if rows.rowcount == 0:
            raise FencedError("catalog")
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} was written by a newer holder: read it again, then decide")
        self.name = name


class NotRunningError(CoordinationError):
    """Nothing is open that could answer: no app, no provider, or several and none was named."""


class BackendScopeError(CoordinationError):
    """The store reaches fewer processes than this environment needs."""


class SettingsValidationError(GrelmicroError, ValueError):
    """A setting has a value it cannot have. The message names the setting or the variable, never its value."""


class EventLoopDeadlockError(BaseException):
    """A blocking call was made on the very event loop that would have to answer it.

    Not an `Exception`: code that retries on errors must not turn a freeze into a loop.
    """
