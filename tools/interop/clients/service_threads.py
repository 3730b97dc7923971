"""The client of the lock service for threads as a program. It takes the commands that `service.mjs` describes."""

import os
import queue
import signal
import sys
import threading
import time

import fencelock
from service_words import say, word

urls, name, same_store = sys.argv[1:4]


class Program:
    def __init__(self):
        self.client = fencelock.Client(urls, same_store=same_store)
        self.held = None

    def lock(self, ttl, timeout):
        patience = None if timeout == "-" else float(timeout) / 1000
        lease = None if ttl == "-" else float(ttl) / 1000
        try:
            self.held = self.client.lock(name, ttl=lease, timeout=patience)
            say("held", self.held.token)
            threading.Thread(target=self.tell_loss, args=(self.held,), daemon=True).start()
        except (fencelock.FencelockError, ValueError) as error:
            say(word(error))
        except KeyboardInterrupt:
            say("cancelled")

    def tell_loss(self, held):
        held.lost.wait()
        now = time.monotonic_ns()
        try:
            held.check()
        except fencelock.LockLost:
            say("lost", now)

    def release(self):
        try:
            say(self.held.release())
        except fencelock.FencelockError as error:
            say(word(error))

    def detach(self, ttl):
        held = self.client.lock(name, ttl=int(ttl) / 1000, detachable=True)
        try:
            held.detach()
            say("detached")
        except fencelock.LockLost:
            say("lost")

    def valid(self):
        say(str(self.held.is_valid()).lower())

    def block(self, ms):
        # This blocks the thread that renews and reports losses. The main thread only waits.
        said = threading.Event()
        self.client._loop.call_soon_threadsafe(said.wait)
        time.sleep(int(ms) / 1000)
        self.valid()
        said.set()

    def loop(self, seconds, ttl):
        end = time.monotonic() + float(seconds)
        while time.monotonic() < end:
            try:
                with self.client.lock(name, ttl=int(ttl) / 1000) as lock:
                    entered = time.monotonic_ns()
                    time.sleep(0.004)
                    left = time.monotonic_ns()
                    if lock.is_valid():
                        say(entered, left, lock.token)
            except fencelock.LockLost:
                pass
        say("done")

    def close(self):
        self.client.close()
        say("closed")


def read(commands):
    for line in sys.stdin:
        # The main thread waits in `lock`, and only a signal reaches it there.
        if line.strip() == "cancel":
            os.kill(os.getpid(), signal.SIGINT)
        else:
            commands.put(line.split())
    os._exit(0)


def main():
    # Otherwise a program that a shell starts in the background ignores the signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    program = Program()
    commands = queue.Queue()
    threading.Thread(target=read, args=(commands,), daemon=True).start()
    say("ready")
    while True:
        command, *words = commands.get()
        getattr(program, command)(*words)


main()
