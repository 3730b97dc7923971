"""A cancelled `detach` leaves the lock as it was. Its argument is the URL of the service."""

import asyncio, sys
from fencelock import AsyncClient

TTL = 2


async def main():
    async with AsyncClient(sys.argv[1]) as client:
        lock = await client.lock("a", ttl=TTL, detachable=True)
        detach = asyncio.create_task(lock.detach())
        # It begins, and sends its renewal.
        await asyncio.sleep(0)
        detach.cancel()
        try:
            await detach
        except asyncio.CancelledError:
            pass
        else:
            raise AssertionError("detached")
        # Longer than one lease.
        await asyncio.sleep(TTL * 1.5)
        lock.check()
        assert await lock.release() == "released"


asyncio.run(main())
