"""The output of the programs with the Python clients of the lock service."""

import fencelock

WORDS = {fencelock.LockHeld: "busy", fencelock.LockTimeout: "timeout", fencelock.Unavailable: "unavailable"}


def say(*words):
    print(*words, flush=True)


def word(error):
    if isinstance(error, fencelock.Refused):
        return f"refused {error.status} {error.problem}"
    if isinstance(error, ValueError):
        return "wrong"
    if isinstance(error, fencelock.ConfigError):
        return f"config {error}"
    return WORDS[type(error)]
