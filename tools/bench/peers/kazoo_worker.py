"""A worker of the benchmark that locks with kazoo. Its protocol is in tools/bench/src/worker.rs."""

import json
import sys
import threading
import time
from urllib.parse import urlsplit

from kazoo.client import KazooClient


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


job = json.loads(sys.stdin.readline())
url = urlsplit(job["url"])
client = KazooClient(hosts=url.netloc + url.path, timeout=30)
client.start()
path = "/" + job["name"].replace("/", "-")
client.ensure_path(path)
print("ready", flush=True)
until = int(sys.stdin.readline().split()[1])
seen = []


def task(number):
    lock = client.Lock(path)
    while True:
        asked = now()
        lock.acquire()
        granted = now()
        leaving = now()
        lock.release()
        seen.append(f"held {number} {asked} {granted} {leaving} 0")
        if leaving >= until:
            return


threads = [threading.Thread(target=task, args=(job["first"] + i,)) for i in range(job["tasks"])]
for thread in threads:
    thread.start()
print("waiting", flush=True)
for thread in threads:
    thread.join()
print("\n".join(seen))
print("end", flush=True)
client.stop()
