"""One step of a hold that processes pass to each other. Its arguments are the URL of the service, the step, and the file with
the lock."""

import json, subprocess, sys
from fencelock import Client, LockHeld, LockLost
url, step = sys.argv[1:3]
with Client(url) as client:
    if step == "take":
        lock = client.lock("handed", detachable=True)
        data = lock.detach()
        assert not lock.is_valid()
        try:
            lock.release()
        except Exception as error:
            assert "detached" in str(error), error
        else:
            raise AssertionError("released")
        json.dump(data, open("detached.json", "w"))
    elif step == "attach":
        data = json.load(open(sys.argv[3]))
        try:
            client.try_lock(data["name"])
        except LockHeld:
            pass
        else:
            raise AssertionError("taken twice")
        lock = client.attach(data)
        assert lock.token == data["token"] and 20 < lock.valid_for() <= 30
        assert lock.release() == "released"
        for bad in ({}, {**data, "key": "x" * 43}):
            try:
                client.attach(bad)
            except ValueError as error:
                assert data["key"] not in str(error)
            else:
                raise AssertionError("attached")
        try:
            client.attach(data)
        except LockLost:
            pass
        else:
            raise AssertionError("attached after the release")
        assert client.try_lock(data["name"]).release() == "released"
