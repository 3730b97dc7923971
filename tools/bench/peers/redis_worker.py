"""A worker of the benchmark that locks with a library for Python: redis-py, redlock-py or pottery. Its protocol
is in tools/bench/src/worker.rs.

Each library has its default options, except a lease of 30 s and a wait without a limit.
"""

import json
import sys
import threading
import time
from urllib.parse import urlsplit


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def redis_py(url):
    import redis

    client = redis.Redis(host=url.hostname, port=url.port)

    def lock(name):
        lock = client.lock(name, timeout=30)
        return lock.acquire, lock.release

    return lock


def redlock_py(url):
    from redlock import Redlock

    manager = Redlock([{"host": url.hostname, "port": url.port}], retry_count=1_000_000_000)

    def lock(name):
        held = []
        return lambda: held.append(manager.lock(name, 30_000)), lambda: manager.unlock(held.pop())

    return lock


def pottery(url):
    import redis
    from pottery import Redlock

    masters = {redis.Redis(host=url.hostname, port=url.port)}

    def lock(name):
        lock = Redlock(key=name, masters=masters, auto_release_time=30)
        return lock.acquire, lock.release

    return lock


libraries = {"redis-py": redis_py, "redlock-py": redlock_py, "pottery": pottery}


def pairs(lock, names, until, counts):
    locks = [lock(name) for name in names]
    count = 0
    while True:
        for acquire, release in locks:
            if now() >= until:
                counts.append(count)
                return
            acquire()
            release()
            count += 1


def contend(lock, name, once, number, until, seen):
    acquire, release = lock(name)
    while True:
        asked = now()
        acquire()
        granted = leaving = now()
        release()
        seen.append(f"held {number} {asked} {granted} {leaving} 0")
        if once or leaving >= until:
            return


def hold(lock, name, number):
    acquire, release = lock(name)
    asked = now()
    acquire()
    granted = now()
    print("waiting", flush=True)
    sys.stdin.readline()
    leaving = now()
    release()
    print(f"held {number} {asked} {granted} {leaving} 0\nend", flush=True)


job = json.loads(sys.stdin.readline())
lock = libraries[job["who"]](urlsplit(job["url"]))
# Connect, and load scripts.
acquire, release = lock(f"{job['name']}/warm-up/{job['first']}")
acquire()
release()
print("ready", flush=True)
until = int(sys.stdin.readline().split()[1])
if job["act"] == "hold":
    hold(lock, job["name"], job["first"])
    sys.exit()
tasks = range(job["first"], job["first"] + job["tasks"])
results = []
if job["act"] == "pairs":
    names = lambda task: [f"{job['name']}/{task}/{n}" for n in range(job["names"])]
    threads = [threading.Thread(target=pairs, args=(lock, names(task), until, results)) for task in tasks]
else:
    once = job["act"] == "once"
    threads = [threading.Thread(target=contend, args=(lock, job["name"], once, task, until, results)) for task in tasks]
for thread in threads:
    thread.start()
print("waiting", flush=True)
for thread in threads:
    thread.join()
if job["act"] == "pairs":
    print(f"pairs {sum(results)}")
else:
    print("\n".join(results))
print("end", flush=True)
