"""The lock of Python's kazoo, as a client of the interoperability tests.

With the pattern by which it counts the nodes of others; see the README of this library.
"""

from kazoo.client import KazooClient

from told import serve


class Kazoo:
    def __init__(self, host, port, name):
        self.client = KazooClient(hosts=f"{host}:{port}", timeout=6)
        self.client.start()
        self.path = f"/{name}"
        self.lock = None

    def take(self, ttl_ms, wait):
        # A new one each time: one that was used before does not make the node above it again.
        lock = self.client.Lock(self.path, "kazoo", extra_lock_patterns=["-lock-"])
        if not lock.acquire(blocking=wait):
            return False
        self.lock = lock
        return True

    def release(self):
        return bool(self.lock.release())


serve(Kazoo)
