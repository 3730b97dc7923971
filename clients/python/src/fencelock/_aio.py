"""The client for asyncio: how a lock is taken, held, lost and released.

Every request may be repeated, at any replica, under the same id: no answer leaves more doubt than a pause.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import socket
import ssl
import sys
from dataclasses import replace
from types import TracebackType
from typing import Any, Callable, Coroutine, Dict, Generator, List, Optional, Sequence, Set, Type, Union

from ._errors import FencelockError, LockHeld, LockLost, LockTimeout, Unavailable
from ._http import Answer, NoAnswer, now
from ._service import Claim, Pauses, Service, Terms, ids_begin, refusal

#: How long `try_lock` tries again while no replica answers.
TRY_S = 5.0
#: How much longer than the requested wait an answer may take.
GRACE_S = 0.5
#: How long an answer needs to travel back. A request must not wait to the very end of the caller's time.
WAY_BACK_S = 0.05
#: The shortest time from the start of one poll to the next.
LEAST_POLL_S = 0.01
#: The shortest validity with which a grant is handed out.
LEAST_VALID_S = 0.01
MOST_LATE_GRANTS = 5
#: How long `release` waits for a confirmation before it continues in the background.
FOREGROUND_S = 5.0
#: The shortest time for the answer to a renewal, unless less of the lease is left.
LEAST_RENEWAL_S = 0.1
#: The longest timer, so that a loss is noticed soon after the machine was suspended.
LONGEST_TIMER_S = 1.0
#: The id of a claim, and a claim key. Both become parts of requests.
CLAIM = re.compile("[0-9a-f]{32}")
KEY = re.compile("[A-Za-z0-9_-]{43,86}")

TOO_LATE = "its lease ended before a renewal was confirmed"


def valid_until(sent: float, lease_ms: int) -> float:
    """Until when a lease that counts from `sent` may be believed: 1 % and 2 ms less than the lease, because clocks drift."""
    lease = lease_ms / 1000
    return sent + lease - (lease / 100 + 0.002)


class AsyncLock:
    """A lock that is held. It is renewed until it is released or lost."""

    def __init__(self, claim: Claim, answer: Answer, sent: float, until: float) -> None:
        #: The lock's name.
        self.name = claim.terms.name
        #: The fencing token: higher than that of each earlier grant. Hand it to what the lock protects.
        self.token: int = answer.body["token"]
        #: The grant as a text, for `fencelock check`.
        self.sequencer: str = answer.body["sequencer"]
        self.mode: str = answer.body["mode"]
        #: Whether another client has asked for the lock. It is yours until you release it.
        self.release_requested: bool = answer.body["release_requested"]
        self._claim = claim
        self._sent = sent
        self._until = until
        self._released = False
        self._detached = False
        self._loss: Optional[LockLost] = None
        self._at_end: List[Callable[[], None]] = []
        self._loop = asyncio.get_running_loop()
        self._timer: Optional[asyncio.TimerHandle] = None
        self._arm()
        self._renewals = self._loop.create_task(self._keep())

    def is_valid(self) -> bool:
        """Whether the lock is held, by the clock at this moment. It is right even where the event loop was blocked for so
        long that the loss could not be told. Ask before each step that must not be done twice."""
        return not self._released and self._loss is None and now() < self._until

    def valid_for(self) -> float:
        """For how many seconds the lock is valid without another renewal; 0 if it is not."""
        return max(self._until - now(), 0.0) if self.is_valid() else 0.0

    def check(self) -> None:
        """Raises LockLost if the lock is not held any more."""
        if not self.is_valid():
            raise self._loss or LockLost(f"lock {self.name} " + ("was released" if self._released else f"was lost: {TOO_LATE}"))

    async def wait_lost(self) -> LockLost:
        """Returns when the lock is lost, before another client can get it. Never returns if the lock is released."""
        if self._loss is None:
            lost = asyncio.Event()
            self._when_lost(lost.set)
            await lost.wait()
        assert self._loss
        return self._loss

    async def release(self) -> str:
        """Releases the lock: "released", "already-expired" or "not-owner". From this call on it is not held. If no replica
        confirms it within 5 s, it raises Unavailable; the client goes on in the background until the lease is over."""
        if self._detached:
            raise FencelockError(f"lock {self.name} was detached; who has it now releases it")
        valid = self.is_valid()
        if not valid and not self._released:
            self._lose(TOO_LATE)
        if self._loss is None and not self._released:
            self._released = True
            self._end()
        left = self._claim.leave("release", valid)
        await asyncio.wait({left}, timeout=FOREGROUND_S)
        if not left.done():
            raise Unavailable(f"the release of {self.name} is not confirmed yet")
        return left.result()

    async def detach(self) -> Dict[str, Any]:
        """Renews the lock a last time, and returns it as data that can be written as JSON, for another process to continue
        with (`AsyncClient.attach`). From then on it is not held here, and not renewed until it is attached. The lock
        must have been taken with `detachable=True`. The data has a secret: anybody who has it may renew and release the lock."""
        claim = self._claim
        if not claim.terms.detachable:
            raise FencelockError(f"lock {self.name} was not taken with detachable=True")
        if claim.bound:
            raise FencelockError(f"lock {self.name} belongs to the replica that took it, and cannot be detached from it")
        self.check()
        self._renewals.cancel()
        try:
            await self._renew_a_last_time()
        except BaseException:
            # It was not detached: its renewals go on.
            if self._loss is None and not self._released:
                self._renewals = self._loop.create_task(self._keep())
            raise
        self._hand_over()
        terms = replace(claim.terms, ttl=claim.ttl).wire()
        return {**terms, "claim": claim.id, "token": self.token, "key": claim.key, "sequencer": self.sequencer}

    async def _renew_a_last_time(self) -> None:
        pauses = Pauses()
        while True:
            self.check()
            try:
                answer = await self._claim.renew(self.token, self._renewal_s())
            except NoAnswer:
                await asyncio.sleep(min(pauses.next(), max(self._until - now(), 0.0)))
                continue
            if answer.status == 410:
                self._lose(answer.detail)
            elif answer.status != 200:
                raise refusal(answer)
            self.check()
            return

    def _hand_over(self) -> None:
        """Ends renewals, and belief in the lock, but does not release it: whoever has its data goes on with it."""
        self._detached = self._released = True
        self._end()

    async def _leave(self) -> None:
        """Releases the lock. What cannot be confirmed continues in the background. After a loss it does not wait: the caller
        must learn of the loss at once."""
        if self._detached:
            return
        if not self._released and not self.is_valid():
            self._lose(TOO_LATE)
        if self._loss:
            return
        try:
            await self.release()
        except FencelockError:
            pass

    def _when_lost(self, then: Callable[[], Any]) -> None:
        """Calls `then` when the lock is lost, at once if it is lost already."""
        if self._loss:
            then()
        else:
            self._at_end.append(lambda: then() if self._loss else None)

    async def _check_entry(self) -> None:
        """Raises LockLost if the lock was lost before the body that it protects begins."""
        if not self.is_valid():
            await self._leave()
            self.check()

    def _end(self) -> None:
        """Ends renewals, and belief in the lock."""
        if self._timer:
            self._timer.cancel()
        self._renewals.cancel()
        for then in self._at_end:
            then()
        self._at_end.clear()

    def _lose(self, why: str) -> None:
        if self._loss is None and not self._released:
            self._loss = LockLost(f"lock {self.name} (token {self.token}) was lost: {why}")
            self._end()
            self._claim.leave("abandon")

    def _arm(self) -> None:
        """Sets the timer that declares the loss. It does not depend on renewals."""
        if self._timer:
            self._timer.cancel()
        # The timer of the loop stands still while the machine is suspended, and the lease does not.
        left = min(max(self._until - now(), 0.0), LONGEST_TIMER_S)
        self._timer = self._loop.call_later(left, self._due)

    def _due(self) -> None:
        if now() >= self._until:
            self._lose(TOO_LATE)
        else:
            self._arm()

    def _renewal_s(self) -> float:
        """How long to wait for the answer to a renewal: a part of the lease, so that there is time for other replicas."""
        left = self._until - now()
        return min(max(left / 3, LEAST_RENEWAL_S), left)

    async def _keep(self) -> None:
        ttl = self._claim.ttl
        due = self._sent + (self._until - self._sent) / 3
        while True:
            await asyncio.sleep(max(due - now(), 0.0))
            sent = now()
            if sent >= self._until:
                return self._lose(TOO_LATE)
            confirmed = False
            try:
                answer = await self._claim.renew(self.token, self._renewal_s())
                if answer.status == 410:
                    return self._lose(answer.detail)
                confirmed = answer.status == 200 and answer.body.get("token") == self.token
                if confirmed and self.is_valid():
                    self.release_requested |= bool(answer.body.get("release_requested"))
                    self._sent = sent
                    self._until = max(self._until, valid_until(sent, answer.body["lease_ms_since_sent"]))
                    self._arm()
            except NoAnswer:
                pass  # the next attempt uses another replica
            left = self._until - now()
            if confirmed:
                due = self._sent + (self._until - self._sent) / 3
            else:
                due = now() + max(min(left / 4, ttl / 10), 0.01)


class _Acquire:
    """`await` it for a lock to release by hand, or `async with` it: then a loss cancels the body and raises LockLost."""

    def __init__(self, take: Callable[[], Any]) -> None:
        self._take = take
        self._lock: Optional[AsyncLock] = None
        self._cancelled = False

    def __await__(self) -> Generator[Any, None, AsyncLock]:
        lock: AsyncLock = yield from self._take().__await__()
        return lock

    async def __aenter__(self) -> AsyncLock:
        lock = await self
        task = asyncio.current_task()
        assert task
        self._lock, self._task = lock, task

        def cancel() -> None:
            if task is not asyncio.current_task():
                self._cancelled = task.cancel()

        lock._when_lost(cancel)
        await lock._check_entry()
        return lock

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        lock = self._lock
        assert lock
        valid = lock.is_valid()
        cancelled = self._cancelled
        if cancelled and sys.version_info >= (3, 11):
            # Another cancellation besides ours must continue.
            cancelled = self._task.uncancel() == 0
        released = lock._released
        await lock._leave()
        if not valid and not released and (error is None or (cancelled and isinstance(error, asyncio.CancelledError))):
            assert lock._loss
            raise lock._loss from error


def _terms(detached: Dict[str, Any]) -> Terms:
    """The terms of a detached lock. No error shows its contents, because it has a secret."""
    try:
        claim, key = detached["claim"], detached["key"]
        if not CLAIM.fullmatch(claim) or not KEY.fullmatch(key) or not claim.startswith(ids_begin(key)):
            raise ValueError
        return Terms(
            detached["name"],
            detached["mode"],
            detached.get("permit_count"),
            detached["ttl_ms"] / 1000,
            detached["lock_delay_ms"] / 1000,
            detached["owner"],
            detached.get("label"),
            True,
        )
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ValueError("this is no detached lock: a member is missing or wrong") from None


class AsyncClient:
    """A client of the lock service in one event loop. It connects when it is first used.

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
        self._service = Service(urls.split(",") if isinstance(urls, str) else list(urls), token, tls, same_store)
        self._owner = owner if owner is not None else f"{socket.gethostname()}:{os.getpid()}"
        self._held: List[AsyncLock] = []
        self._requests: Set[asyncio.Task[AsyncLock]] = set()
        self._closed = False

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
    ) -> _Acquire:
        """Waits in the queue until the lock is held, at most for `timeout`; by default forever. 0 is like `try_lock`.

        `ttl` is the lease, which is renewed while the lock is held; by default that of the service: 30 s, or its longest if that
        is shorter. `mode` is exclusive, shared, or permit. With permit, `permit_count` is how many may hold the lock together.
        The store keeps the lock for `lock_delay` longer if its holder vanished. `label` is a note for people. `detachable`:
        another process will continue with the lock; see `AsyncLock.detach`."""
        terms = Terms(name, mode, permit_count, ttl, lock_delay, self._owner, label, detachable)
        patience = float("inf") if timeout is None else timeout
        if math.isnan(patience):
            raise ValueError("timeout must be a number of seconds, not nan")
        return _Acquire(lambda: self._acquire(terms, patience > 0, now() + (patience if patience > 0 else TRY_S)))

    def try_lock(
        self,
        name: str,
        *,
        ttl: Optional[float] = None,
        mode: str = "exclusive",
        permit_count: Optional[int] = None,
        lock_delay: float = 0.0,
        label: Optional[str] = None,
    ) -> _Acquire:
        """Takes the lock if it is free; otherwise raises LockHeld. The options are those of `lock`."""
        return self.lock(
            name, ttl=ttl, timeout=0, mode=mode, permit_count=permit_count, lock_delay=lock_delay, label=label
        )

    async def attach(self, detached: Dict[str, Any], *, timeout: float = TRY_S) -> AsyncLock:
        """Continues with a lock that another process detached, or that `fencelock take` took. It renews the lock first.
        Raises LockLost if the lock is no longer held, Unavailable if no replica answers in time."""
        return await self._request(self._attach(detached, now() + timeout), AsyncLock._hand_over)

    async def _attach(self, detached: Dict[str, Any], deadline: float) -> AsyncLock:
        terms, token = _terms(detached), int(detached["token"])
        claim = await self._service.claim(terms, deadline)
        if claim.bound:
            raise FencelockError(f"lock {terms.name} belongs to the replica that took it, and cannot be attached")
        claim.id, claim.key, claim.placed = detached["claim"], detached["key"], True
        pauses = Pauses()
        while True:
            sent = now()
            try:
                answer = await claim.renew(token, max(deadline - sent, WAY_BACK_S))
            except NoAnswer as error:
                pause = pauses.next()
                if now() + pause >= deadline:
                    raise Unavailable(f"lock {terms.name}: {error}") from error
                await asyncio.sleep(pause)
                continue
            if answer.status == 410:
                raise LockLost(f"lock {terms.name} (token {token}) was lost: {answer.detail}")
            if answer.status != 200 or answer.body.get("token") != token:
                raise refusal(answer)
            until = valid_until(sent, answer.body["lease_ms_since_sent"])
            if now() >= until:
                raise LockLost(f"lock {terms.name} (token {token}) was lost: {TOO_LATE}")
            known = {"release_requested": False, "mode": terms.mode, "sequencer": detached["sequencer"]}
            return self._hold(claim, replace(answer, body={**known, **answer.body}), sent, until)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancels waiting requests, releases all locks, and waits until the releases are confirmed."""
        self._closed = True
        for request in self._requests:
            request.cancel()
        for lock in list(self._held):
            await lock._leave()
        while left := self._requests | self._service.background:
            await asyncio.wait(left)
        self._service.http.close()

    async def _acquire(self, terms: Terms, queue: bool, deadline: float) -> AsyncLock:
        take = self._take(terms, queue, deadline)
        return await self._request(take, lambda lock: self._service.run(lock._leave()))

    async def _request(self, work: Coroutine[Any, Any, AsyncLock], undo: Callable[[AsyncLock], Any]) -> AsyncLock:
        """Runs `work` in a task of its own, which `close` can cancel. If the caller is cancelled when the lock is there already,
        `undo` gets it."""
        if self._closed:
            work.close()
            raise FencelockError("the client was closed")
        request = asyncio.get_running_loop().create_task(work)
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)
        try:
            await asyncio.wait({request})
        except asyncio.CancelledError:
            request.cancel()
            if request.done() and not request.cancelled() and not request.exception():
                undo(request.result())
            raise
        if request.cancelled():
            raise FencelockError("the client was closed")
        return request.result()

    def _hold(self, claim: Claim, answer: Answer, sent: float, until: float) -> AsyncLock:
        lock = AsyncLock(claim, answer, sent, until)
        self._held.append(lock)
        lock._at_end.append(lambda: self._held.remove(lock))
        return lock

    async def _take(self, terms: Terms, queue: bool, deadline: float) -> AsyncLock:
        claim = await self._service.claim(terms, deadline)

        def leave() -> None:
            if claim.unsure or claim.placed:
                claim.leave("release")

        pauses = Pauses()
        heard: FencelockError = LockTimeout(f"lock {terms.name} did not come in time")
        failures = late = 0
        try:
            while True:
                left = deadline - now()
                if left <= 0:
                    raise heard
                wait = min(claim.store.poll, left) if queue else 0.0
                sent = now()
                try:
                    answer = await claim.put(queue, wait, min(wait + GRACE_S, left + WAY_BACK_S))
                except NoAnswer as error:
                    failures += 1
                    self._service.check_end(deadline, failures)
                    # If the caller's time cut a poll short, that says nothing about the service.
                    if now() < deadline:
                        heard = Unavailable(f"lock {terms.name}: {error}")
                    # A claim that belongs to a replica ends with it: claim anew at another one.
                    if claim.bound and failures > 1:
                        leave()
                        claim = await self._service.claim(terms, deadline)
                    await asyncio.sleep(max(min(pauses.next(), deadline - now()), 0.0))
                    continue
                failures = 0
                if answer.problem in ("ended", "other-replica"):
                    claim.placed = claim.unsure = False
                    claim = await self._service.claim(terms, deadline, claim.named(answer))
                    await asyncio.sleep(max(min(pauses.next(), deadline - now()), 0.0))
                    continue
                pauses.reset()
                if answer.status == 200:
                    claim.placed = True
                    until = valid_until(sent, answer.body["lease_ms_since_sent"])
                    if now() < until - LEAST_VALID_S:
                        return self._hold(claim, answer, sent, until)
                    late += 1
                    heard = Unavailable(f"lock {terms.name}: its grants come too late to be used")
                    if late > MOST_LATE_GRANTS:
                        raise heard
                elif answer.status == 202:
                    claim.placed = True
                    heard = LockTimeout(f"lock {terms.name} did not come in time")
                    if stalled := answer.body.get("stalled"):
                        heard = Unavailable(f"lock {terms.name}: the store grants nothing at this time: {stalled}")
                    # A replica that is about to end answers at once. The pause avoids a busy loop.
                    await asyncio.sleep(max(sent + LEAST_POLL_S - now(), 0.0))
                elif answer.problem == "held":
                    claim.placed = False
                    raise LockHeld(answer.detail)
                elif answer.status == 429:
                    heard = Unavailable(f"lock {terms.name}: {answer.detail}")
                    await asyncio.sleep(max(min(answer.retry_after, deadline - now()), 0.0))
                else:
                    # Of a call that failed at the store, a part may have taken effect.
                    claim.unsure = claim.unsure or answer.status >= 500
                    raise refusal(answer)
        except BaseException:
            leave()
            raise
