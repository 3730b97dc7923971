"""Distributed locks with fencing tokens: a thin client of the fencelock service.

`Client` is for threads, `AsyncClient` for asyncio. All durations are seconds.
"""

from ._aio import AsyncClient, AsyncLock
from ._errors import ConfigError, FencelockError, LockHeld, LockLost, LockTimeout, Refused, Unavailable
from ._threads import Client, Lock

__all__ = [
    "AsyncClient",
    "AsyncLock",
    "Client",
    "ConfigError",
    "FencelockError",
    "Lock",
    "LockHeld",
    "LockLost",
    "LockTimeout",
    "Refused",
    "Unavailable",
]
