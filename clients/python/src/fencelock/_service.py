"""The replicas, what the store behind them promises, and one claim as the service knows it."""

from __future__ import annotations

import asyncio
import hashlib
import random
import secrets
import ssl
from dataclasses import dataclass
from typing import Any, Coroutine, Dict, List, Optional, Set
from urllib.parse import SplitResult

from ._errors import FencelockError, Refused, Unavailable
from ._http import Answer, Http, NoAnswer, now, replica_url

RESPONSE_S = 2.0


@dataclass(frozen=True)
class Store:
    """The part of `GET /v1/store` that the client needs."""

    is_bound: bool
    claim_window: float
    poll: float


@dataclass(frozen=True)
class Replica:
    """Where to send a request. On a store that is bound to replicas, `id` names the one that is meant."""

    url: SplitResult
    id: Optional[str] = None


@dataclass(frozen=True)
class Terms:
    """What is wanted of a lock."""

    name: str
    mode: str
    permit_count: Optional[int]
    ttl: float
    lock_delay: float
    owner: str
    label: Optional[str]
    #: Whether another process is to go on with the hold: its claim has a key of its own then.
    detachable: bool = False

    def wire(self) -> Dict[str, Any]:
        members = {
            "name": self.name,
            "mode": self.mode,
            "permit_count": self.permit_count,
            "ttl_ms": round(self.ttl * 1000),
            "lock_delay_ms": round(self.lock_delay * 1000),
            "owner": self.owner,
            "label": self.label,
        }
        return {name: value for name, value in members.items() if value is not None}


def is_transient(answer: Answer) -> bool:
    """Whether the answer does not count: the request may have taken effect, and another replica may know better."""
    understood = answer.status < 300 and answer.body
    return answer.problem in ("unavailable", "draining") or (not understood and not answer.problem)


def refusal(answer: Answer) -> Refused:
    return Refused(answer.detail, answer.status, answer.problem)


class Pauses:
    """Pauses between tries: none before the first, then more and more, up to a second."""

    def __init__(self) -> None:
        self._tries = 0

    def reset(self) -> None:
        self._tries = 0

    def next(self) -> float:
        self._tries += 1
        if self._tries == 1:
            return 0.0
        return random.uniform(0.02, min(0.02 * 2 ** min(self._tries, 10), 1.0))


def ids_begin(key: str) -> str:
    """How the ids of a key's claims begin."""
    return hashlib.sha256(key.encode()).hexdigest()[:20]


class Service:
    """The service: a list of replicas, any of which will do."""

    def __init__(self, urls: List[str], token: Optional[str], tls: Optional[ssl.SSLContext]) -> None:
        if not urls:
            raise ValueError("name at least one replica")
        self._token = token
        self._urls = [replica_url(url, token) for url in urls]
        # So that the clients of a program that runs many times do not all begin with the same replica.
        self._current = random.randrange(len(urls))
        self.http = Http(token, tls)
        self.key = secrets.token_urlsafe(32)
        self._ids_begin = ids_begin(self.key)
        self._count = 0
        self._store: Optional[Store] = None
        #: What still runs when nobody waits for it: releases.
        self.background: Set[asyncio.Task[Any]] = set()

    def any(self) -> SplitResult:
        """The replica that worked last."""
        return self._urls[self._current]

    def other(self, than: SplitResult) -> None:
        """From now on another replica than this one, unless somebody else has moved on already."""
        if self.any() is than:
            self._current = (self._current + 1) % len(self._urls)

    def next_id(self) -> str:
        self._count += 1
        return f"{self._ids_begin}{self._count:012x}"

    def run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs it in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self.background.add(task)

        def done(task: asyncio.Task[Any]) -> None:
            self.background.discard(task)
            if not task.cancelled():
                task.exception()  # who waits has it; nobody else needs it

        task.add_done_callback(done)
        return task

    async def claim(self, terms: Terms, deadline: float, named: Optional[Replica] = None) -> Claim:
        """A new claim, at any replica; where the store is bound to replicas, at the one named or at one that answers now."""
        if self._store and not self._store.is_bound:
            return Claim(self, terms, self._store, None)
        if self._store and named:
            return Claim(self, terms, self._store, named)
        pauses = Pauses()
        while True:
            url = self.any()
            try:
                answer = await self.send(Replica(url), "GET", "/v1/store", None, RESPONSE_S)
                if answer.status == 200 and answer.body.get("poll_ms", 0) > 0:
                    break
                if not is_transient(answer):
                    raise refusal(answer)
                why = answer.detail
            except NoAnswer as error:
                why = str(error)
            self.other(url)
            pause = pauses.next()
            if now() + pause >= deadline:
                raise Unavailable(f"the lock service does not answer: {why}")
            await asyncio.sleep(pause)
        body = answer.body
        self._store = Store(body["binding"] == "replica", body["claim_window_ms"] / 1000, body["poll_ms"] / 1000)
        bound = self.replica(body, url) if self._store.is_bound else None
        return Claim(self, terms, self._store, bound)

    def replica(self, body: Dict[str, Any], url: SplitResult) -> Replica:
        """The replica that an answer names; at `url`, if it names no other."""
        advertised = body.get("advertise")
        return Replica(replica_url(advertised, self._token) if advertised else url, body["replica"])

    async def send(
        self, replica: Replica, method: str, path: str, body: Any, timeout: float, key: Optional[str] = None
    ) -> Answer:
        headers = {} if body is None else {"Fencelock-Key": key or self.key}
        if replica.id:
            headers["Fencelock-Replica"] = replica.id
        return await self.http.send(replica.url, method, path, headers, body, timeout)


class Claim:
    """One claim: an id that is used once, and the requests about it."""

    def __init__(self, service: Service, terms: Terms, store: Store, bound: Optional[Replica]) -> None:
        if terms.detachable:
            self.key = secrets.token_urlsafe(32)
            self.id = f"{ids_begin(self.key)}{1:012x}"
        else:
            self.key = service.key
            self.id = service.next_id()
        self.service = service
        self.terms = terms
        self.store = store
        self.bound = bound
        #: Whether a request had no answer, so that it may take effect late.
        self.unsure = False
        #: Whether the store may have something of it.
        self.placed = False
        self._left: Optional[asyncio.Task[str]] = None

    def named(self, answer: Answer) -> Optional[Replica]:
        """The replica that a problem names, if it names one."""
        if not self.bound or not answer.body.get("replica"):
            return None
        return self.service.replica(answer.body, self.bound.url)

    async def _send(self, method: str, path: str, body: Dict[str, Any], timeout: float) -> Answer:
        """Sends one request. An answer that does not count is a NoAnswer, too."""
        replica = self.bound or Replica(self.service.any())
        try:
            answer = await self.service.send(replica, method, f"/v1/claims/{self.id}{path}", body, timeout, self.key)
            if is_transient(answer):
                raise NoAnswer(answer.detail)
            if answer.closing and not self.bound:
                self.service.other(replica.url)
            # Between proxies that mix up answers, at least no other claim's grant is believed.
            if answer.body.get("claim", self.id) != self.id:
                raise NoAnswer("an answer about another claim")
            return answer
        except NoAnswer:
            if not self.bound:
                self.service.other(replica.url)
            raise

    async def _send_unsure(self, method: str, path: str, body: Dict[str, Any], timeout: float) -> Answer:
        try:
            return await self._send(method, path, body, timeout)
        except (NoAnswer, asyncio.CancelledError):
            self.unsure = True
            raise

    async def put(self, queue: bool, wait: float, timeout: float) -> Answer:
        """Takes the lock, joins the queue, or goes on waiting."""
        body = {**self.terms.wire(), "queue": queue, "wait_ms": int(wait * 1000)}
        return await self._send_unsure("PUT", "", body, timeout)

    async def renew(self, token: int, timeout: float) -> Answer:
        return await self._send_unsure("POST", "/renew", {**self.terms.wire(), "token": token}, timeout)

    def leave(self, how: str, valid: bool = False) -> asyncio.Task[str]:
        """Ends the claim in the background: until the service has confirmed it, or for ttl and lock-delay, at one replica
        after the other. Nothing may be believed any more when this is called."""
        if self._left is None:
            self._left = self.service.run(self._insist(how, valid))
            self.service.run(self._once_more(how, self._left))
        return self._left

    async def _release(self, how: str) -> Answer:
        terms = self.terms.wire()
        terms.pop("owner")
        terms.pop("label", None)
        return await self._send("POST", "/release", {**terms, "how": how}, RESPONSE_S)

    async def _insist(self, how: str, valid: bool) -> str:
        until = now() + self.terms.ttl + self.terms.lock_delay
        pauses = Pauses()
        again = False
        while True:
            error: FencelockError
            try:
                answer = await self._release(how)
                if answer.status == 200:
                    # An earlier try may have been the one that released, though its answer was lost.
                    return "released" if valid and again else str(answer.body["released"])
                if answer.status in (410, 421):
                    # The replica to which the claim was bound is gone, and the claim with it.
                    return "not-owner"
                error = refusal(answer)
            except NoAnswer as cause:
                error = Unavailable(f"the release of {self.terms.name} was not confirmed: {cause}")
            again = True
            pause = pauses.next()
            if now() + pause >= until:
                raise error
            await asyncio.sleep(pause)

    async def _once_more(self, how: str, left: asyncio.Task[str]) -> None:
        """What had no answer may have taken effect after the release."""
        await asyncio.wait({left})
        if not self.unsure:
            return
        await asyncio.sleep(self.store.claim_window)
        await self._release(how)
