"""A lock that is lost after its grant and before the body that it protects begins. Its argument is the URL of the service."""

import asyncio, sys, time
from fencelock import AsyncClient, Client, LockLost

url = sys.argv[1]


def block_after_grants(client):
    """Blocks the event loop after each grant, until its lease is over. Then the loss is noticed first of all."""
    hold = client._hold

    def blocked(claim, answer, sent, until):
        lock = hold(claim, answer, sent, until)
        time.sleep(max(lock.valid_for(), 0) + 0.01)
        return lock

    client._hold = blocked


async def asyncio_body():
    async with AsyncClient(url) as client:
        block_after_grants(client)
        try:
            async with client.lock("before", ttl=0.5):
                raise AssertionError("the body began")
        except LockLost:
            pass
        lock = await client.lock("before", ttl=0.5)
        await asyncio.sleep(0.1)
        await asyncio.wait_for(lock.wait_lost(), 1)


def threads_body():
    with Client(url) as client:
        block_after_grants(client._client)
        lock = client.lock("before", ttl=0.5)
        assert lock.lost.wait(1), "the loss is not told"
        try:
            with client.lock("before", ttl=0.5):
                raise AssertionError("the body began")
        except LockLost:
            pass
        try:
            with lock:
                raise AssertionError("the body began")
        except LockLost:
            pass


asyncio.run(asyncio_body())
threads_body()
