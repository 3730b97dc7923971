"""The lock of Python's kazoo, as a client of the interoperability tests.

It has the option with which kazoo counts the nodes of other libraries; see the README of this library.
"""

from kazoo.client import KazooClient

from told import serve


class Kazoo:
    def __init__(self, host, port, name):
        self.client = KazooClient(hosts=f"{host}:{port}", timeout=6)
        self.client.start()
        # Created in advance, and permanently. kazoo looks for this node and then creates one below it. If another
        # client had created it as a container, the server could delete it between these two steps, and kazoo would
        # raise NoNodeError.
        self.client.ensure_path(f"/{name}")
        self.path = f"/{name}"
        self.lock = None

    def take(self, ttl_ms, wait):
        lock = self.client.Lock(self.path, "kazoo", extra_lock_patterns=["-lock-"])
        if not lock.acquire(blocking=wait):
            return False
        self.lock = lock
        return True

    def release(self):
        return bool(self.lock.release())


serve(Kazoo)
