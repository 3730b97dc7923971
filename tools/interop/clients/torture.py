"""The asyncio client of the lock service as a worker of `fencelock torture --with "python3 torture.py"`: it takes and releases
locks, and reports what it believes (tools/torture/src/worker.rs; docs/torture.md has the protocol)."""

import asyncio
import itertools
import json
import os
import random
import sys
import time

import fencelock

ENDS = {"released": "released", "already-expired": "expired", "not-owner": "not-owner"}


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def say(event):
    """Written at once, so that no output of a killed process is lost."""
    os.write(1, (json.dumps(event) + "\n").encode())


def valid_until(lock):
    """The end of the validity. The client shows only the time that is left."""
    return int(lock._until * 1e9)


class Resource:
    """The resource that the locks protect: one line for each request, and one for its answer."""

    @classmethod
    async def open(cls, port):
        this = cls()
        this.reader, this.writer = await asyncio.open_connection("127.0.0.1", port)
        return this

    async def ask(self, request):
        self.writer.write(f"{request}\n".encode())
        return int(await self.reader.readline())


class Attempt:
    def __init__(self, n, name, how, shared):
        self.n, self.name, self.how, self.shared = n, name, how, shared
        self.granted = False


class Worker:
    def __init__(self, job):
        self.job = job
        hosts = job["url"].split("://")[1].split("?")[0]
        # Each replica reaches the store through its own proxy.
        self.client = fencelock.AsyncClient([f"http://{host}" for host in hosts.split(",")], same_store="confirmed")
        self.numbers = itertools.count()
        self.stopping = False


class Task:
    def __init__(self, worker, task, resource):
        self.worker, self.job, self.task, self.resource = worker, worker.job, task, resource
        job = worker.job
        self.random = random.Random(f"{job['seed']} {job['worker']} {job['life']} {task}")

    async def run(self):
        failures = 0
        while not self.worker.stopping:
            failures = failures + 1 if await self.attempt() else 0
            if failures >= 3:
                await asyncio.sleep(self.random.uniform(0.005, 0.05))

    def draw(self):
        number = self.random.randrange(1000)
        if number < self.job["overstay"]:
            return "overstay"
        if number < 80:
            return "try"
        if number < 130:
            return "drop-request"
        if number < 200:
            return "drop-guard"
        return "wait"

    def stay(self):
        """How long to hold, in seconds."""
        number, ttl = self.random.randrange(10_000), self.job["ttl_ms"] / 1000
        if number < 6000:
            return 0.0
        if number < 9980:
            return self.random.uniform(0, self.job["hold_us"] / 1e6)
        if number < 9990:
            return self.random.uniform(0, ttl / 4)
        # Long enough for renewals.
        return self.random.uniform(ttl / 2, ttl * 1.5)

    async def attempt(self):
        """One request, from its beginning to its end. Returns whether it failed."""
        how = self.draw()
        shared = self.job["shared"] and how != "overstay" and self.random.random() < 0.12
        attempt = Attempt(next(self.worker.numbers), self.random.randrange(len(self.job["names"])), how, shared)
        n, name = attempt.n, attempt.name
        say({"asked": {"n": n, "task": self.task, "name": name, "shared": shared, "how": how, "at": now()}})
        try:
            end = await self.take(attempt)
        except fencelock.LockHeld:
            end = "busy"
        except fencelock.LockTimeout:
            end = "timed-out"
        except asyncio.TimeoutError:
            end = "gone"
        except fencelock.FencelockError as error:
            unconfirmed = attempt.granted and isinstance(error, fencelock.Unavailable)
            end = "unconfirmed" if unconfirmed else {"failed": repr(error)}
        say({"over": {"n": n, "at": now(), "end": end}})
        return isinstance(end, dict)

    async def take(self, attempt):
        name, how = self.job["names"][attempt.name], attempt.how
        options = {"ttl": self.job["ttl_ms"] / 1000, "mode": "shared" if attempt.shared else "exclusive"}
        if how == "try":
            request = self.worker.client.try_lock(name, **options)
        else:
            request = self.worker.client.lock(name, timeout=self.job["patience_ms"] / 1000, **options)
        if how == "drop-guard":
            try:
                async with request as lock:
                    await self.hold(attempt, lock)
            except fencelock.LockLost:
                pass  # the client reported the loss, too
            return "dropped"
        if how == "drop-request":
            lock = await asyncio.wait_for(request, self.random.uniform(0, 0.02))
        else:
            lock = await request
        await (self.overstay if how == "overstay" else self.hold)(attempt, lock)
        return ENDS[await lock.release()]

    def grant(self, attempt, lock):
        attempt.granted, attempt.token, attempt.claim = True, lock.token, lock._claim.id
        grant = {"n": attempt.n, "at": now(), "token": lock.token, "claim": attempt.claim, "valid": valid_until(lock)}
        say({"granted": grant})

    async def hold(self, attempt, lock):
        """Holds, and writes. What follows is the release."""
        self.grant(attempt, lock)
        told = None
        lost = asyncio.ensure_future(lock.wait_lost())
        try:
            read = await self.resource.ask(f"r {attempt.name}")
            ends, valid = now() + int(self.stay() * 1e9), valid_until(lock)
            while not lost.done() and now() < ends:
                await asyncio.wait({lost}, timeout=min((ends - now()) / 1e9, 0.02))
                if valid_until(lock) != valid:
                    valid = valid_until(lock)
                    say({"valid": {"n": attempt.n, "until": valid}})
            if lost.done():
                told = now()
            # The validity is checked last, as a careful program does. The process may still be stopped between the
            # check and the write.
            if lock.is_valid():
                await self.write(attempt, read)
        except asyncio.CancelledError:
            told = now()
            # The answer of the resource has not been read, so this connection cannot be used again.
            self.resource = await Resource.open(self.job["resource"])
            raise
        finally:
            lost.cancel()
            valid, left = valid_until(lock), now()
            if told is None and not lock.is_valid():
                told = left
            until = min(told or left, valid)
            say({"left": {"n": attempt.n, "until": until, "told": told, "valid": valid}})

    async def overstay(self, attempt, lock):
        """Blocks the whole program past the lease, and then writes like a program that never checks its lock."""
        self.grant(attempt, lock)
        read = await self.resource.ask(f"r {attempt.name}")
        time.sleep(lock.valid_for() + self.random.uniform(0, self.job["ttl_ms"] / 1000))
        told, valid = now(), valid_until(lock)
        say({"left": {"n": attempt.n, "until": min(told, valid), "told": told, "valid": valid}})
        await self.write(attempt, read)

    async def write(self, attempt, read):
        who = f"{self.job['worker']}:{self.job['life']}:{attempt.n}"
        mode = "s" if attempt.shared else "x"
        await self.resource.ask(f"w {who} {attempt.name} {attempt.token} {attempt.claim} {mode} {read + 1}")


async def main():
    commands = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(commands)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    worker = Worker(json.loads(await commands.readline()))
    say("ready")
    tasks = []
    for task in range(worker.job["tasks"]):
        resource = await Resource.open(worker.job["resource"])
        tasks.append(asyncio.ensure_future(Task(worker, task, resource).run()))
    # Empty at the end of the input.
    while await commands.readline() not in (b"", b"stop\n"):
        pass
    worker.stopping = True
    await asyncio.gather(*tasks)
    await worker.client.close()
    say({"closed": None})


asyncio.run(main())
