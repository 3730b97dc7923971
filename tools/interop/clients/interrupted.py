"""Ctrl-C while a thread attaches a lock. Its argument is the URL of the service."""

import os, signal, sys, time
from fencelock import Client, LockHeld
from fencelock._service import Claim

url = sys.argv[1]
# Otherwise a program that a shell starts in the background ignores the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    # Until the main thread has noticed.
    time.sleep(0.1)


def before_renewal(client):
    renew = Claim.renew

    async def interrupted(*args):
        Claim.renew = renew
        interrupt()
        return await renew(*args)

    Claim.renew = interrupted


def after_renewal(client):
    hold = client._client._hold

    def interrupted(*args):
        client._client._hold = hold
        interrupt()
        return hold(*args)

    client._client._hold = interrupted


def is_held(client, name):
    try:
        client.try_lock(name).release()
        return False
    except LockHeld:
        return True


def attach(client, data, at):
    at(client)
    try:
        client.attach(data)
    except KeyboardInterrupt:
        return
    raise AssertionError("not interrupted")


with Client(url) as client, Client(url) as other:
    for at in (before_renewal, after_renewal):
        name = at.__name__
        data = client.lock(name, ttl=2, detachable=True).detach()
        attach(client, data, at)
        assert is_held(other, name), "released"
        # It can be attached again.
        lock = client.attach(data)
        data = lock.detach()
        attach(client, data, at)
        # Nobody renews it any more.
        deadline = time.monotonic() + 10
        while is_held(other, name):
            assert time.monotonic() < deadline, "renewed"
            time.sleep(0.05)
