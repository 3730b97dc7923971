"""The client for threads: the client for asyncio, in a thread of its own, which also renews locks and reports losses."""

from __future__ import annotations

import asyncio
import concurrent.futures
import ssl
import threading
from typing import Any, Callable, Coroutine, Dict, Optional, Sequence, TypeVar, Union

from ._aio import AsyncClient, AsyncLock
from ._errors import FencelockError

T = TypeVar("T")


class Lock:
    """A lock that is held. It is renewed until it is released or lost. A context manager that releases it; it raises
    LockLost at its end if the lock was lost before. Its methods may be called in any thread."""

    def __init__(self, client: Client, lock: AsyncLock, lost: threading.Event) -> None:
        self._client = client
        self._lock = lock
        #: The lock's name.
        self.name = lock.name
        #: The fencing token: higher than that of each earlier grant. Hand it to what the lock protects.
        self.token = lock.token
        #: The grant as a text, for `fencelock check`.
        self.sequencer = lock.sequencer
        self.mode = lock.mode
        #: Set when the lock is lost, before another client can get it.
        self.lost = lost

    @property
    def release_requested(self) -> bool:
        """Whether another client has asked for the lock. It is yours until you release it."""
        return self._lock.release_requested

    def is_valid(self) -> bool:
        """Whether the lock is held, by the clock at this moment. Ask before each step that must not be done twice."""
        return self._lock.is_valid()

    def valid_for(self) -> float:
        """For how many seconds the lock is valid without another renewal; 0 if it is not."""
        return self._lock.valid_for()

    def check(self) -> None:
        """Raises LockLost if the lock is not held any more."""
        self._lock.check()

    def release(self) -> str:
        """Releases the lock: "released", "already-expired" or "not-owner". From this call on it is not held. If no replica
        confirms it within 5 s, it raises Unavailable; the client goes on in the background until the lease is over."""
        return self._client._run(self._lock.release())

    def detach(self) -> Dict[str, Any]:
        """Renews the lock a last time, and returns it as data that can be written as JSON, for another process to continue
        with (`Client.attach`). From then on it is not held here, and not renewed until it is attached. The lock must
        have been taken with `detachable=True`. The data has a secret: anybody who has it may renew and release the lock. If an
        exception such as KeyboardInterrupt ends the call, the lock is still held here, or is released because nobody has its data."""
        return self._client._run(self._lock.detach(), lambda _: self._lock._claim.leave("release", True))

    def __enter__(self) -> Lock:
        if not self.is_valid():
            self._client._run(self._lock._check_entry())
        return self

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        valid, released = self._lock.is_valid(), self._lock._released
        self._client._run(self._lock._leave())
        if not valid and not released and error is None:
            raise self._lock._loss or FencelockError("the lock was lost")


class Client:
    """A client of the lock service for threads. It connects when it is first used. After a fork, each child process needs a
    client of its own.

    `urls` are the replicas of one service. `tls` is for your own certificate authority, or a client certificate. `owner` is shown
    to people who look at the lock; by default it is the host and the process id. `same_store`: with "url" all replicas must have
    been started with the same store URL; with "confirmed" you confirm that their different URLs are those of one store."""

    def __init__(
        self,
        urls: Union[str, Sequence[str]],
        *,
        token: Optional[str] = None,
        tls: Optional[ssl.SSLContext] = None,
        owner: Optional[str] = None,
        same_store: str = "url",
    ) -> None:
        self._client = AsyncClient(urls, token=token, tls=tls, owner=owner, same_store=same_store)
        self._loop = asyncio.new_event_loop()
        #: Held while something is handed to the loop's thread, so that nothing comes after its end.
        self._gate = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="fencelock", daemon=True)
        self._thread.start()

    def lock(
        self,
        name: str,
        *,
        ttl: Optional[float] = None,
        timeout: Optional[float] = None,
        mode: str = "exclusive",
        permit_count: Optional[int] = None,
        lock_delay: float = 0.0,
        label: Optional[str] = None,
        detachable: bool = False,
    ) -> Lock:
        """Waits in the queue until the lock is held, at most for `timeout`; by default forever. 0 is like `try_lock`. An
        exception in the waiting thread, such as KeyboardInterrupt, gives up the place.

        `ttl` is the lease, which is renewed while the lock is held; by default that of the service: 30 s, or its longest if that
        is shorter. `mode` is exclusive, shared, or permit. With permit, `permit_count` is how many may hold the lock together.
        The store keeps the lock for `lock_delay` longer if its holder vanished. `label` is a note for people. `detachable`:
        another process will continue with the lock; see `Lock.detach`."""

        async def take() -> Lock:
            lock = await self._client.lock(
                name,
                ttl=ttl,
                timeout=timeout,
                mode=mode,
                permit_count=permit_count,
                lock_delay=lock_delay,
                label=label,
                detachable=detachable,
            )
            lost = threading.Event()
            lock._when_lost(lost.set)
            return Lock(self, lock, lost)

        return self._run(take(), lambda lock: self._client._service.run(lock._lock._leave()))

    def try_lock(
        self,
        name: str,
        *,
        ttl: Optional[float] = None,
        mode: str = "exclusive",
        permit_count: Optional[int] = None,
        lock_delay: float = 0.0,
        label: Optional[str] = None,
    ) -> Lock:
        """Takes the lock if it is free; otherwise raises LockHeld. The options are those of `lock`."""
        return self.lock(
            name, ttl=ttl, timeout=0, mode=mode, permit_count=permit_count, lock_delay=lock_delay, label=label
        )

    def attach(self, detached: Dict[str, Any], *, timeout: float = 5.0) -> Lock:
        """Continues with a lock that another process detached, or that `fencelock take` took. It renews the lock first.
        Raises LockLost if the lock is no longer held, Unavailable if no replica answers in time. If an exception such as
        KeyboardInterrupt ends the call, the lock is neither renewed nor released here, and can be attached again."""

        async def attach() -> Lock:
            lock = await self._client.attach(detached, timeout=timeout)
            lost = threading.Event()
            lock._when_lost(lost.set)
            return Lock(self, lock, lost)

        return self._run(attach(), lambda lock: lock._lock._hand_over())

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancels waiting requests, releases all locks, and waits until the releases are confirmed."""
        if self._ended:
            return
        try:
            self._run(self._client.close())
        except FencelockError:
            # Another thread has closed it meanwhile.
            if self._ended:
                return
            raise
        with self._gate:
            if self._ended:
                return
            self._ended = True
        # No call can begin any more. Those of other threads that are under way end with an error.
        asyncio.run_coroutine_threadsafe(self._end_tasks(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end_tasks(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _run(self, work: Coroutine[Any, Any, T], undo: Optional[Callable[[T], Any]] = None) -> T:
        """Runs `work` in the thread of the loop. If the wait for it is interrupted, it is cancelled, or its result is undone if
        it is done already. Without `undo` it goes on to its end."""
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()
        task: Optional[asyncio.Task[T]] = None
        interrupted = False

        def done(task: asyncio.Task[T]) -> None:
            if task.cancelled():
                answer.set_exception(FencelockError("the client was closed"))
            elif error := task.exception():
                answer.set_exception(error)
            else:
                if interrupted and undo:
                    undo(task.result())
                answer.set_result(task.result())

        def start() -> None:
            nonlocal task
            task = self._loop.create_task(work)
            task.add_done_callback(done)

        def interrupt() -> None:
            nonlocal interrupted
            interrupted = True
            if not task:
                # `start` was never called. What has no `undo`, such as a release, must be done nevertheless.
                work.close() if undo else start()
            elif answer.done():
                if undo and answer.exception() is None:
                    undo(answer.result())
            elif undo:
                task.cancel()

        try:
            # Within the `try`, because the interrupt may come while this returns.
            with self._gate:
                if self._ended:
                    work.close()
                    raise FencelockError("the client was closed")
                self._loop.call_soon_threadsafe(start)
            return answer.result()
        except BaseException:
            # An error of the call itself leaves nothing to undo.
            if not answer.done() or (undo and answer.exception() is None):
                with self._gate:
                    if not self._ended:
                        self._loop.call_soon_threadsafe(interrupt)
            raise
