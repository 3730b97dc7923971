"""redlock-py, as a client of the interoperability tests."""

import time

import redis
from redlock import Redlock

from told import serve


class RedlockPy:
    def __init__(self, host, port, name):
        self.manager = Redlock([{"host": host, "port": port, "db": 0}], retry_count=1, retry_delay=0.001)
        self.redis = redis.Redis(host=host, port=port)
        self.name = name
        self.lock = None

    def take(self, ttl_ms, wait):
        while True:
            self.lock = self.manager.lock(self.name, ttl_ms)
            if self.lock:
                return True
            if not wait:
                return False
            time.sleep(0.005)

    def release(self):
        # unlock() does not report its result.
        ours = self.redis.get(self.name) == self.lock.key
        self.manager.unlock(self.lock)
        return ours


serve(RedlockPy)
