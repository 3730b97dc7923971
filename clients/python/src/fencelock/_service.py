"""The replicas, the store behind them, and a claim at the service."""

from __future__ import annotations

import asyncio
import hashlib
import random
import secrets
import ssl
from dataclasses import dataclass
from typing import Any, Coroutine, Dict, List, Optional, Set, Tuple
from urllib.parse import SplitResult

from ._errors import ConfigError, FencelockError, Refused, Unavailable
from ._http import Answer, Http, NoAnswer, now, replica_url

RESPONSE_S = 2.0
#: The service's default lease, unless its longest one is shorter.
DEFAULT_TTL_S = 30.0
#: The least time that replicas have to describe their store, even if the caller's timeout is shorter.
LEAST_OPEN_S = 0.5
#: How often a URL is asked for the store of one replica. Behind a load balancer other replicas may answer.
TRIES = 4
#: How many replicas are remembered. There are only more if replicas restart.
MOST_KNOWN = 256
#: The members that identify a store, and others in which the replicas of one store must agree.
SAME = ("engine", "store")
ALIKE = ("binding", "claim_window_ms", "min_ttl_ms", "shared", "permits", "lock_delay")


@dataclass(frozen=True)
class Store:
    """The part of `GET /v1/store` that the client needs."""

    is_bound: bool
    claim_window: float
    poll: float
    min_ttl: float
    max_ttl: float


def _store(body: Dict[str, Any]) -> Store:
    return Store(
        body["binding"] == "replica",
        body["claim_window_ms"] / 1000,
        body["poll_ms"] / 1000,
        body.get("min_ttl_ms", 0) / 1000,
        body.get("max_ttl_ms", float("inf")) / 1000,
    )


@dataclass(frozen=True)
class Replica:
    """Where to send a request. On a store whose claims belong to replicas, `id` names the replica."""

    url: SplitResult
    id: Optional[str] = None


@dataclass(frozen=True)
class Terms:
    """What a client asks for."""

    name: str
    mode: str
    permit_count: Optional[int]
    #: None: the service's default.
    ttl: Optional[float]
    lock_delay: float
    owner: str
    label: Optional[str]
    #: Whether another process will continue with the hold. Then its claim has a key of its own.
    detachable: bool = False

    def wire(self) -> Dict[str, Any]:
        members = {
            "name": self.name,
            "mode": self.mode,
            "permit_count": self.permit_count,
            "ttl_ms": None if self.ttl is None else round(self.ttl * 1000),
            "lock_delay_ms": round(self.lock_delay * 1000),
            "owner": self.owner,
            "label": self.label,
        }
        return {name: value for name, value in members.items() if value is not None}


def is_retryable(answer: Answer) -> bool:
    """Whether the answer is not final: the request may have taken effect, or another replica may serve it."""
    understood = answer.status < 300 and answer.body
    return answer.problem in ("unavailable", "draining") or (not understood and not answer.problem)


def refusal(answer: Answer) -> Refused:
    return Refused(answer.detail, answer.status, answer.problem)


class Pauses:
    """Pauses between attempts: none before the first, then longer and longer, up to a second."""

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
    """The first digits of the ids of a key's claims."""
    return hashlib.sha256(key.encode()).hexdigest()[:20]


#: How often in a row each replica must have said that it serves another store, before a call without a timeout ends.
MOST_ELSEWHERE = 8


class Service:
    """The service: a list of replicas of one store."""

    def __init__(self, urls: List[str], token: Optional[str], tls: Optional[ssl.SSLContext], same_store: str) -> None:
        if not urls:
            raise ValueError("name at least one replica")
        if same_store not in ("url", "confirmed"):
            raise ValueError(f"same_store is url or confirmed, not {same_store!r}")
        self._token = token
        self._urls = [replica_url(url, token) for url in urls]
        # Chosen at random, so that not all processes begin with the same replica.
        self._current = random.randrange(len(urls))
        self.http = Http(token, tls)
        self.key = secrets.token_urlsafe(32)
        self._ids_begin = ids_begin(self.key)
        self._count = 0
        self._same = SAME if same_store == "url" else SAME[:1]
        #: The URL that was first asked, and the store that its replica described. Other replicas are compared with that.
        self._first: Optional[Tuple[SplitResult, Dict[str, Any]]] = None
        #: The URLs that need no check before they are used.
        self._usable: Set[SplitResult] = set()
        #: The ids of the replicas that were checked, oldest first, and why one is refused; "" if it serves this store.
        self._asked: Dict[str, str] = {}
        #: The URLs whose last answer was about another store, how often in a row, and why they are not used.
        self._elsewhere: Dict[SplitResult, Tuple[int, str]] = {}
        #: Releases that continue in the background.
        self.background: Set[asyncio.Task[Any]] = set()

    def any(self) -> SplitResult:
        """The replica that worked last."""
        return self._urls[self._current]

    def other(self, than: SplitResult) -> None:
        """Changes to another replica than this one, unless that was done already."""
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
                task.exception()  # a caller that waits gets it as well

        task.add_done_callback(done)
        return task

    async def claim(self, terms: Terms, deadline: float, named: Optional[Replica] = None) -> Claim:
        """A new claim, at any replica. If claims belong to replicas: at the named one, or at one that answers now."""
        if self._first and (named or not _store(self._first[1]).is_bound):
            return Claim(self, terms, _store(self._first[1]), named)
        pauses, failures = Pauses(), 0
        while True:
            url = self.any()
            try:
                if not self._first:
                    # The limit leaves time for the lock if a replica hangs.
                    url, body = await self._open(min(RESPONSE_S, max((deadline - now()) / 2, LEAST_OPEN_S)))
                else:
                    body = await self._ask(url, RESPONSE_S)
                break
            except NoAnswer as error:
                why = str(error)
            failures += 1
            self.check_end(deadline, failures)
            self.other(url)
            pause = pauses.next()
            if now() + pause >= deadline:
                raise Unavailable(f"the lock service does not answer: {why}")
            await asyncio.sleep(pause)
        store = _store(body)
        return Claim(self, terms, store, self.replica(body, url) if store.is_bound else None)

    async def _open(self, timeout: float) -> Tuple[SplitResult, Dict[str, Any]]:
        """Asks all replicas for their store. Those that answer must serve the same; the others are asked before they are used.
        Returns the URL of one that answered, and what it said."""
        asked = (self._said(url, timeout) for url in self._urls)
        answers = dict(zip(self._urls, await asyncio.gather(*asked, return_exceptions=True)))
        said = {url: body for url, body in answers.items() if isinstance(body, dict)}
        if not said:
            errors = [error for error in answers.values() if isinstance(error, BaseException)]
            raise next((error for error in errors if not isinstance(error, NoAnswer)), errors[0])
        first = self._first or next(iter(said.items()))
        for url, body in said.items():
            if why := self._differs(url, body, first):
                raise ConfigError(why)
        self._first = first
        for url, body in said.items():
            self._note(url, body, "")
        while self.any() not in self._usable:
            self.other(self.any())
        return (self.any(), said[self.any()]) if self.any() in said else first

    async def _said(self, url: SplitResult, timeout: float) -> Dict[str, Any]:
        """The store as the replica at `url` describes it."""
        answer = await self.send(Replica(url), "GET", "/v1/store", None, timeout)
        if is_retryable(answer):
            raise NoAnswer(answer.detail)
        if answer.status != 200 or not answer.body.get("poll_ms", 0) > 0:
            raise refusal(answer)
        return answer.body

    def _differs(self, url: SplitResult, body: Dict[str, Any], first: Tuple[SplitResult, Dict[str, Any]]) -> str:
        """Why the replica at `url` does not serve the store of the first one; "" if it does."""
        where, said = first
        if any(body.get(word) != said.get(word) for word in self._same):
            return (
                f"the replicas serve two stores: {url.geturl()} serves {body.get('store')} ({body.get('engine')}), and "
                f"{where.geturl()} said that it serves {said.get('store')} ({said.get('engine')}); a lock that is taken in two "
                "stores is no lock. Start all replicas with one store; if it is one by two names, use same_store=\"confirmed\""
            )
        if any(body.get(word) != said.get(word) for word in ALIKE):
            return (
                f"the replica at {url.geturl()} opened {body.get('store')} with other options than that at {where.geturl()} did; "
                "start all replicas with the same"
            )
        return ""

    def _note(self, url: SplitResult, body: Dict[str, Any], why: str) -> None:
        (self._usable.discard if why else self._usable.add)(url)
        self._asked[body.get("replica", "")] = why
        if len(self._asked) > MOST_KNOWN:
            del self._asked[next(iter(self._asked))]

    async def _ask(self, url: SplitResult, timeout: float) -> Dict[str, Any]:
        """Asks the replica at `url` for its store. NoAnswer if there is no answer, or it serves another store."""
        times, _ = self._elsewhere.pop(url, (0, ""))
        body = await self._said(url, timeout)
        assert self._first
        why = self._differs(url, body, self._first)
        self._note(url, body, why)
        if why:
            self._elsewhere[url] = (times + 1, why)
            raise NoAnswer(why)
        return body

    def check_end(self, deadline: float, failures: int) -> None:
        """ConfigError if a call has no timeout, and all replicas say again and again that they serve another store. Answers to
        earlier calls only count after this call has failed at every replica: one may have been corrected since."""
        said = [self._elsewhere.get(url, (0, "")) for url in self._urls]
        if deadline == float("inf") and failures >= len(said) and all(times >= MOST_ELSEWHERE for times, _ in said):
            raise ConfigError(said[0][1])

    async def check_url(self, url: SplitResult, timeout: float) -> None:
        """Checks a URL, before it is used, that has not yet described this store."""
        if url not in self._usable:
            await self._ask(url, timeout)

    async def check(self, answer: Answer, url: SplitResult, until: float) -> None:
        """NoAnswer if an answer does not count, because its replica serves another store. A replica that was not checked yet is
        checked now, over the same URL."""
        if not answer.replica:
            if answer.status < 300:
                raise NoAnswer(f"{url.netloc}: the answer does not say which replica it is from")
            return  # from a load balancer: a replica always gives its id
        why = f"{url.netloc}: replica {answer.replica} does not say which store it serves"
        for _ in range(TRIES):
            if answer.replica in self._asked:
                break
            try:
                # Behind a load balancer another replica may answer, which proves nothing about this one.
                await self._ask(url, until - now())
            except NoAnswer as error:
                why = str(error)
        if why := self._asked.get(answer.replica, why):
            raise NoAnswer(why)

    def replica(self, body: Dict[str, Any], url: SplitResult) -> Replica:
        """The replica that an answer names; at `url` if it names no other URL."""
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
        #: Whether a request without an answer may take effect later.
        self.unsure = False
        #: Whether the store may have something of it.
        self.placed = False
        self._left: Optional[asyncio.Task[str]] = None

    @property
    def ttl(self) -> float:
        """The lease, with the service's default if none was asked for. Only answers of the service say how long to believe."""
        if self.terms.ttl is not None:
            return self.terms.ttl
        return max(min(DEFAULT_TTL_S, self.store.max_ttl - self.terms.lock_delay), self.store.min_ttl)

    def named(self, answer: Answer) -> Optional[Replica]:
        """The replica that a problem names, if it names one."""
        if not self.bound or not answer.body.get("replica"):
            return None
        return self.service.replica(answer.body, self.bound.url)

    async def _send(self, method: str, path: str, body: Dict[str, Any], timeout: float) -> Answer:
        """Sends one request. An answer that is not final is a NoAnswer, too."""
        replica, until = self.bound or Replica(self.service.any()), now() + timeout
        try:
            if not self.bound:
                await self.service.check_url(replica.url, timeout)
            answer = await self.service.send(replica, method, f"/v1/claims/{self.id}{path}", body, until - now(), self.key)
            if is_retryable(answer):
                raise NoAnswer(answer.detail)
            await self.service.check(answer, replica.url, until)
            if answer.closing and not self.bound:
                self.service.other(replica.url)
            # A proxy may mix up answers: never believe in the grant of another claim.
            if answer.body.get("claim", self.id) != self.id:
                raise NoAnswer("an answer about another claim")
            return answer
        except (NoAnswer, Refused) as error:  # Refused: it does not say which store it serves
            if not self.bound:
                self.service.other(replica.url)
            raise NoAnswer(str(error)) from error

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
        """Ends the claim in the background, at one replica after the other, until the service has confirmed it, or for ttl and
        lock-delay. The caller must no longer believe in the claim."""
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
        until = now() + self.ttl + self.terms.lock_delay
        pauses = Pauses()
        again = False
        while True:
            error: FencelockError
            try:
                answer = await self._release(how)
                if answer.status == 200:
                    # An earlier attempt may have released the lock, and its answer was lost.
                    return "released" if valid and again else str(answer.body["released"])
                if answer.status in (410, 421):
                    # The replica to which the claim belonged is gone, and so is the claim.
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
        """Releases again, because a request without an answer may take effect after the release."""
        await asyncio.wait({left})
        if not self.unsure:
            return
        await asyncio.sleep(self.store.claim_window)
        await self._release(how)
