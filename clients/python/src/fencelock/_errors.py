"""The errors, by what a program does about them."""


class FencelockError(Exception):
    """All errors of this client."""


class LockHeld(FencelockError):
    """Others hold the lock, and the request did not want to wait."""


class LockTimeout(FencelockError, TimeoutError):
    """The lock was not granted within the caller's timeout."""


class Unavailable(FencelockError):
    """No replica answered, or the store behind them did not, within the caller's timeout."""


class ConfigError(FencelockError):
    """The client's URLs or options are wrong: its replicas serve different stores, or open one with different options."""


class LockLost(FencelockError):
    """The lock is lost. Stop: the resource refuses further work with this token."""


class Refused(FencelockError):
    """The service refuses the request: a bad name, no right, or something that the store does not support."""

    def __init__(self, message: str, status: int, problem: str) -> None:
        super().__init__(message)
        #: The HTTP status.
        self.status = status
        #: The last word of the problem's type: "forbidden", "unsupported".
        self.problem = problem
