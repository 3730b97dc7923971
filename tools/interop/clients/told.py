"""The commands of every client of the interoperability tests in Python.

Its arguments are HOST PORT NAME. It reads one command per line on stdin, and answers on stdout:

    take TTL_MS             held | busy
    wait TTL_MS             held
    release                 released | not-mine
    loop SECONDS TTL_MS     one line `IN OUT` for each hold, nanoseconds of the monotonic clock; then `done`
"""

import random
import sys
import time


def say(text):
    print(text, flush=True)


def loop(client, seconds, ttl_ms):
    end = time.monotonic() + seconds
    holds = []
    while time.monotonic() < end:
        client.take(ttl_ms, True)
        entered = time.monotonic_ns()
        time.sleep(random.uniform(0, 0.002))
        holds.append((entered, time.monotonic_ns()))
        client.release()
        time.sleep(random.uniform(0, 0.01))
    for entered, left in holds:
        print(entered, left)
    say("done")


def serve(make):
    host, port, name = sys.argv[1:4]
    client = make(host, int(port), name)
    say("ready")
    for line in sys.stdin:
        match line.split():
            case ["take", ttl_ms]:
                say("held" if client.take(int(ttl_ms), False) else "busy")
            case ["wait", ttl_ms]:
                client.take(int(ttl_ms), True)
                say("held")
            case ["release"]:
                say("released" if client.release() else "not-mine")
            case ["loop", seconds, ttl_ms]:
                loop(client, float(seconds), int(ttl_ms))
            case _:
                sys.exit(f"told {line!r}, which is unknown")
