"""What can go wrong, by what a program does about it."""


class FencelockError(Exception):
    """All errors of this client."""


class LockHeld(FencelockError):
    """Others hold the lock, and the request was not to wait."""


class LockTimeout(FencelockError, TimeoutError):
    """The lock did not come in the time that the caller had."""


class Unavailable(FencelockError):
    """No replica answered, or the store behind them did not, in the time that the caller had."""


class ConfigError(FencelockError):
    """The client's URLs or options are wrong: its replicas serve different stores, or open one with different options."""


class LockLost(FencelockError):
    """The hold may no longer be trusted. Stop; what was not finished under this token is refused by the resource."""


class Refused(FencelockError):
    """The service refuses the request: a bad name, no right, something that the store does not offer."""

    def __init__(self, message: str, status: int, problem: str) -> None:
        super().__init__(message)
        #: The HTTP status.
        self.status = status
        #: The last word of the problem's type: "forbidden", "unsupported".
        self.problem = problem
