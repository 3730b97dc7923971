#!/usr/bin/env python3
"""What waiting polls cost one replica of the lock service: its memory and its CPU time, from /proc.

    polls.py URL PID [--waiters 10000] [--names 100] [--seconds 30]

PID is the process of the replica. Each waiter has its own connection and claim key, and polls as a client does.
Meanwhile one more claim holds each name. The CPU time of this program is printed, too."""

import argparse
import asyncio
import hashlib
import json
import os
import resource
import secrets
import sys
import time
from urllib.parse import urlsplit


def claim():
    key = secrets.token_urlsafe(32)
    return key, hashlib.sha256(key.encode()).hexdigest()[:20] + "000000000001"


class Connection:
    def __init__(self, url):
        self.url = urlsplit(url)

    async def open(self):
        self.reader, self.writer = await asyncio.open_connection(self.url.hostname, self.url.port)

    async def send(self, method, path, key, body):
        body = json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self.url.netloc}\r\nFencelock-Key: {key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.writer.write(head.encode() + body)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length:")[1].split("\r\n")[0])
        return int(head.split()[1]), json.loads(await self.reader.readexactly(length))


async def hold(url, name, holds):
    connection, (key, id) = Connection(url), claim()
    await connection.open()
    body = {"name": name, "ttl_ms": 600_000}
    status, grant = await connection.send("PUT", f"/v1/claims/{id}", key, body)
    assert status == 200, grant
    body["token"] = grant["token"]
    status, grant = await connection.send("POST", f"/v1/claims/{id}/renew", key, body)
    assert status == 200, grant
    holds.append((connection, key, id, name))


async def wait(url, name, counts):
    connection, (key, id) = Connection(url), claim()
    await connection.open()
    while True:
        body = {"name": name, "ttl_ms": 600_000, "queue": True, "wait_ms": 60_000}
        status, answer = await connection.send("PUT", f"/v1/claims/{id}", key, body)
        if status == 503:  # As a client does.
            counts["unavailable"] += 1
            continue
        assert status == 202, answer
        counts["polls"] += 1
        counts["waiting"].add(id)


def cpu(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def megabytes(pid, what):
    with open(f"/proc/{pid}/status") as file:
        line = next(line for line in file if line.startswith(what))
    return int(line.split()[1]) / 1024


async def main():
    args = argparse.ArgumentParser()
    args.add_argument("url")
    args.add_argument("pid", type=int)
    args.add_argument("--waiters", type=int, default=10_000)
    args.add_argument("--names", type=int, default=100)
    args.add_argument("--seconds", type=float, default=30)
    args = args.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    names = [f"polls/{number}-{secrets.token_hex(4)}" for number in range(args.names)]
    print(f"{megabytes(args.pid, 'VmRSS'):.0f} MB before")
    holds, counts, tasks = [], {"polls": 0, "unavailable": 0, "waiting": set()}, []
    for name in names:
        await hold(args.url, name, holds)
    for number in range(args.waiters):
        tasks.append(asyncio.create_task(wait(args.url, names[number % args.names], counts)))
        if number % 100 == 99:
            await asyncio.sleep(0.05)
    while len(counts["waiting"]) < args.waiters:
        await asyncio.sleep(0.1)
        failed = [task for task in tasks if task.done()]
        if failed:
            sys.exit(f"a waiter failed: {failed[0].exception()}")
    before, polls, own, begun = cpu(args.pid), counts["polls"], time.process_time(), time.monotonic()
    await asyncio.sleep(args.seconds)
    took = time.monotonic() - begun
    print(
        f"{args.waiters} waiters on {args.names} names: {megabytes(args.pid, 'VmRSS'):.0f} MB (at most "
        f"{megabytes(args.pid, 'VmHWM'):.0f} MB); {(counts['polls'] - polls) / took:.0f} polls/s, {counts['unavailable']} of all unavailable; replica "
        f"{(cpu(args.pid) - before) / took * 100:.0f} % of a core; this program {(time.process_time() - own) / took * 100:.0f} %"
    )
    for task in tasks:
        task.cancel()
    for connection, key, id, name in holds:
        await connection.send("POST", f"/v1/claims/{id}/release", key, {"name": name, "how": "release"})


asyncio.run(main())
