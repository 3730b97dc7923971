"""One HTTP exchange: no redirects, no retries, and no answer after its time is over."""

from __future__ import annotations

import asyncio
import http.client
import io
import ipaddress
import json
import math
import ssl
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple
from urllib.parse import SplitResult, urlsplit

CONNECT_S = 1.0
#: The service closes an idle connection after a minute. This side closes it earlier.
IDLE_S = 30.0
LARGEST_ANSWER = 1 << 20


def now() -> float:
    """The monotonic clock in seconds. On Linux it also counts while the machine is suspended."""
    return time.clock_gettime(_CLOCK)


_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class NoAnswer(Exception):
    """No answer came. The request may take effect nevertheless."""


@dataclass
class Answer:
    """An answer. Its body is a dict if it was JSON."""

    status: int
    body: Dict[str, Any]
    #: The last word of a problem's type; "" if the body is no problem.
    problem: str
    detail: str
    retry_after: float
    #: The replica closes the connection. It may be about to end.
    closing: bool
    #: The id of the replica that answered, which it draws at its start; "" if no replica did.
    replica: str


def replica_url(text: str, token: Optional[str]) -> SplitResult:
    """Checks the URL of a replica."""
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError(f"the URL of a replica begins with http:// or https://: {text!r}")
    if url.username or url.password:
        raise ValueError("a token does not belong into the URL; use the option `token`")
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise ValueError("the token has characters that a token cannot have; a line break at its end, for example")
    if url.scheme == "http" and token and not _is_loopback(url.hostname):
        raise ValueError(f"the token is not sent to {url.hostname} over plain http; use https")
    return url


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Connection(asyncio.Protocol):
    """The bytes that have arrived, and whether the connection has ended."""

    def __init__(self) -> None:
        self.transport: Optional[asyncio.Transport] = None
        self.came = bytearray()
        self.ended = False
        self.idle_since = 0.0
        self._more: Optional[asyncio.Future[None]] = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.came += data
        self._wake()

    def eof_received(self) -> None:
        self.ended = True
        self._wake()

    def connection_lost(self, exc: Optional[Exception]) -> None:
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        if self._more and not self._more.done():
            self._more.set_result(None)

    async def _need_more(self) -> None:
        if self.ended or len(self.came) > LARGEST_ANSWER:
            raise NoAnswer("the connection ended before the answer did")
        self._more = asyncio.get_running_loop().create_future()
        await self._more

    def _take(self, count: int) -> bytes:
        taken = bytes(self.came[:count])
        del self.came[:count]
        return taken

    async def until(self, end: bytes) -> bytes:
        while (found := self.came.find(end)) < 0:
            await self._need_more()
        return self._take(found + len(end))

    async def exactly(self, count: int) -> bytes:
        while len(self.came) < count:
            await self._need_more()
        return self._take(count)

    async def rest(self) -> bytes:
        while not self.ended:
            await self._need_more()
        return self._take(len(self.came))

    def is_usable(self) -> bool:
        # Unread bytes are the answer to a request that was given up.
        return not self.ended and not self.came and now() - self.idle_since < IDLE_S


class Http:
    """Sends requests over connections that are kept open. Used in one event loop."""

    def __init__(self, token: Optional[str], tls: Optional[ssl.SSLContext]) -> None:
        self._token = token
        self._tls = tls
        self._idle: Dict[Tuple[str, str, int], List[_Connection]] = {}

    def close(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                _end(connection)
        self._idle.clear()

    async def send(
        self, url: SplitResult, method: str, path: str, headers: Dict[str, str], body: Any, timeout: float
    ) -> Answer:
        """Raises NoAnswer if there is none in time. When cancelled, it closes the connection."""
        exchange = asyncio.ensure_future(self._exchange(url, method, path, headers, body))
        try:
            await asyncio.wait({exchange}, timeout=max(timeout, 0))
            if not exchange.done():
                raise NoAnswer(f"{url.netloc}: no answer within {timeout:.1f} s")
            return exchange.result()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NoAnswer(f"{url.netloc}: {error}") from error
        finally:
            exchange.cancel()

    async def _exchange(self, url: SplitResult, method: str, path: str, headers: Dict[str, str], body: Any) -> Answer:
        content = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {url.path.rstrip('/')}{path} HTTP/1.1", f"Host: {url.netloc}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines.append(f"Content-Length: {len(content)}")
        if content:
            lines.append("Content-Type: application/json")
        if self._token:
            lines.append(f"Authorization: Bearer {self._token}")
        where = (url.scheme, url.hostname or "", url.port or (443 if url.scheme == "https" else 80))
        connection = await self._connection(where)
        kept = False
        try:
            assert connection.transport
            connection.transport.write("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
            answer, kept = await _read(connection)
            return answer
        finally:
            if kept:
                connection.idle_since = now()
                self._idle.setdefault(where, []).append(connection)
            else:
                _end(connection)

    async def _connection(self, where: Tuple[str, str, int]) -> _Connection:
        idle = self._idle.get(where, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable():
                return connection
            _end(connection)
        scheme, host, port = where
        if scheme == "https" and not self._tls:
            self._tls = ssl.create_default_context()
        loop = asyncio.get_running_loop()
        made = asyncio.ensure_future(loop.create_connection(_Connection, host, port, ssl=self._tls if scheme == "https" else None))
        try:
            await asyncio.wait({made}, timeout=CONNECT_S)
            if not made.done():
                raise NoAnswer(f"no connection within {CONNECT_S} s")
            return made.result()[1]
        finally:
            made.cancel()


def _end(connection: _Connection) -> None:
    if connection.transport:
        connection.transport.abort()


async def _read(connection: _Connection) -> Tuple[Answer, bool]:
    """The answer, and whether the connection can be used again."""
    status = 100
    while status < 200:  # informational answers (1xx) come before the final one
        line, _, block = (await connection.until(b"\r\n\r\n")).partition(b"\r\n")
        version, status = line[:8], int(line[9:12])
        headers = http.client.parse_headers(io.BytesIO(block))
    kept = version == b"HTTP/1.1" and not _is_closing(headers)
    if "chunked" in headers.get("Transfer-Encoding", "").lower():
        content = b""
        while size := int((await connection.until(b"\r\n")).split(b";")[0], 16):
            content += (await connection.exactly(size + 2))[:-2]
        while await connection.until(b"\r\n") != b"\r\n":
            pass
    elif "Content-Length" in headers:
        content = await connection.exactly(int(headers["Content-Length"]))
    else:
        content, kept = await connection.rest(), False
    return _parse(status, headers, content), kept


def _is_closing(headers: http.client.HTTPMessage) -> bool:
    return headers.get("Connection", "").lower() == "close"


def _parse(status: int, headers: http.client.HTTPMessage, content: bytes) -> Answer:
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        body = {}
    is_problem = headers.get_content_type() == "application/problem+json" and isinstance(body.get("type"), str)
    try:
        retry_after = max(float(headers.get("Retry-After", "1")), 0.0)
    except ValueError:
        retry_after = 1.0
    return Answer(
        status,
        body,
        problem=body["type"].rpartition(":")[2] if is_problem else "",
        detail=str(body.get("detail", "")) if is_problem else f"HTTP status {status} without an explanation",
        retry_after=retry_after if math.isfinite(retry_after) else 1.0,
        closing=_is_closing(headers),
        replica=headers.get("Fencelock-Replica", ""),
    )
