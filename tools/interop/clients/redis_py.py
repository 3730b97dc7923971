"""The lock of Python's redis (redis-py), as a client of the interoperability tests."""

import redis
from redis.exceptions import LockError

from told import serve


class RedisPy:
    def __init__(self, host, port, name):
        self.redis = redis.Redis(host=host, port=port)
        self.name = name
        self.lock = None

    def take(self, ttl_ms, wait):
        lock = self.redis.lock(self.name, timeout=ttl_ms / 1000, sleep=0.005)
        if not lock.acquire(blocking=wait):
            return False
        self.lock = lock
        return True

    def release(self):
        try:
            self.lock.release()
            return True
        except LockError:
            return False


serve(RedisPy)
