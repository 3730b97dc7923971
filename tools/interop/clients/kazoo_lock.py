"""The lock of Python's kazoo, as a client of the interoperability tests.

With the pattern by which it counts the nodes of others; see the README of this library.
"""

from kazoo.client import KazooClient

from told import serve


class Kazoo:
    def __init__(self, host, port, name):
        self.client = KazooClient(hosts=f"{host}:{port}", timeout=6)
        self.client.start()
        # Beforehand, and to stay. kazoo looks for this node and then creates one below it; if others made it a container,
        # it may go between the two, and kazoo raises NoNodeError.
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
