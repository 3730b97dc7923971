"""The asyncio client of the lock service as a program. It takes the commands that `service.mjs` describes."""

import asyncio
import sys
import time

import fencelock
from service_words import say, word

urls, name, same_store = sys.argv[1:4]


class Program:
    def __init__(self):
        self.client = fencelock.AsyncClient(urls, same_store=same_store)
        self.held = None
        self.waiting = None
        self.done = None

    async def hold(self, ttl, timeout):
        """Holds within `async with`, so that a loss cancels this task."""
        patience = None if timeout == "-" else float(timeout) / 1000
        lease = None if ttl == "-" else float(ttl) / 1000
        self.done = asyncio.Event()
        try:
            async with self.client.lock(name, ttl=lease, timeout=patience) as self.held:
                say("held", self.held.token)
                await self.done.wait()
        except fencelock.LockLost:
            say("lost", time.monotonic_ns())
        except asyncio.CancelledError:
            say("cancelled")
        except (fencelock.FencelockError, ValueError) as error:
            say(word(error))

    def lock(self, ttl, timeout):
        self.waiting = asyncio.ensure_future(self.hold(ttl, timeout))

    def cancel(self):
        self.waiting.cancel()

    async def release(self):
        try:
            say(await self.held.release())
        except fencelock.FencelockError as error:
            say(word(error))
        self.done.set()

    async def detach(self, ttl):
        held = await self.client.lock(name, ttl=int(ttl) / 1000, detachable=True)
        try:
            await held.detach()
            say("detached")
        except fencelock.LockLost:
            say("lost")

    def valid(self):
        say(str(self.held.is_valid()).lower())

    def block(self, ms):
        time.sleep(int(ms) / 1000)
        self.valid()

    async def loop(self, seconds, ttl):
        end = time.monotonic() + float(seconds)
        while time.monotonic() < end:
            try:
                async with self.client.lock(name, ttl=int(ttl) / 1000) as lock:
                    entered = time.monotonic_ns()
                    await asyncio.sleep(0.004)
                    left = time.monotonic_ns()
                    if lock.is_valid():
                        say(entered, left, lock.token)
            except fencelock.LockLost:
                pass
        say("done")

    async def close(self):
        await self.client.close()
        say("closed")


async def main():
    program = Program()
    commands = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(commands)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    say("ready")
    running = set()
    while line := (await commands.readline()).decode():
        command, *words = line.split()
        done = getattr(program, command)(*words)
        if asyncio.iscoroutine(done):
            # Not awaited, so that `cancel` is read while `lock` waits.
            task = asyncio.ensure_future(done)
            running.add(task)
            task.add_done_callback(running.discard)


asyncio.run(main())
