"""What stands before the app: who may ask, how much, for how long, and the headers of every answer.

Plain ASGI, because the middleware of the framework would read the body first or buffer the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

from unembed.serve.limits import Limits, Refusal, internal, stopping, too_long, too_many
from unembed.serve.worker import place_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)

LOOPBACK = ("localhost", "127.0.0.1", "::1")
ANYWHERE = ("0.0.0.0", "::", "")
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
# After the stream's own limit: time for the last event to reach a slow client.
MARGIN = 5.0
DRAIN, DRAIN_SECONDS = 10, 2.0


class Guard:
    """Wraps the app."""

    def __init__(
        self, app: ASGIApp, limits: Limits, hosts: Collection[str], host: str, origins: Collection[str] = ()
    ) -> None:
        """`hosts` are the names it answers to, besides loopback and the address `host` that it listens on.

        Pages of `origins` may read what it says; the app's own answers carry that leave already.
        """
        self._app, self._limits = app, limits
        self._names = {name.lower() for name in (*LOOPBACK, host, *hosts)}
        # A rebinding attack needs a name, so bare addresses are safe where any address may be ours.
        self._any_address = host in ANYWHERE
        self._origins = frozenset(origins)
        self._requests = 0
        self._shares: Counter[str] = Counter()
        self._door = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        answer = _Answer(send)
        client = client_of(scope)
        self._requests += 1
        self._shares[client] += 1
        try:
            self._check(scope, client)
            if scope["method"] not in ("GET", "HEAD", "OPTIONS"):
                receive = await self._body(receive)
                await self._take_turns()
            async with asyncio.timeout(self._limits.stream_seconds + MARGIN):
                await self._app(scope, receive, answer)
        except Refusal as refusal:
            if refusal.status == 413:
                await self._drain(receive)
            await self._refuse(scope, answer, refusal)
        except TimeoutError:
            if not answer.started:  # a stream that has begun just ends: its client does not read
                await self._refuse(scope, answer, too_long())
        except asyncio.CancelledError:  # the server ends and waits no longer, in the middle of a long pass
            await self._refuse(scope, answer, stopping())
        except Exception as error:  # the message may hold a text: only the place is logged
            log.error("a request failed: %s", place_of(error))
            if not answer.started:
                await self._refuse(scope, answer, internal())
        finally:
            self._requests -= 1
            self._shares[client] -= 1
            if not self._shares[client]:
                del self._shares[client]

    async def _refuse(self, scope: Scope, answer: _Answer, refusal: Refusal) -> None:
        """Answer with an error; a stream that has begun gets it as its last event."""
        body = json.dumps({"error": refusal.error, "message": refusal.message})
        if answer.started:
            last = f"event: error\ndata: {body}\n\n" if answer.is_stream else ""
            await answer({"type": "http.response.body", "body": last.encode()})
            return
        headers = {"content-type": "application/json", "content-length": str(len(body.encode()))}
        if refusal.retry_after is not None:
            headers["retry-after"] = str(refusal.retry_after)
        origin = next((value.decode("latin-1") for key, value in scope["headers"] if key == b"origin"), "")
        if origin and self._origins & {origin, "*"}:
            headers |= {"access-control-allow-origin": origin, "vary": "Origin"}
            headers["access-control-expose-headers"] = "Retry-After"
        raw = [(key.encode(), value.encode("latin-1")) for key, value in headers.items()]
        await answer({"type": "http.response.start", "status": refusal.status, "headers": raw})
        await answer({"type": "http.response.body", "body": body.encode()})

    def _check(self, scope: Scope, client: str) -> None:
        if self._shares[client] > self._limits.connections_share:
            raise too_many(f"{self._limits.connections_share} requests of yours are under way")
        if self._requests > self._limits.connections:
            raise Refusal(503, "busy", "too many requests at once: try again in a few seconds", 5)
        given = [value for key, value in scope["headers"] if key == b"host"]
        if len(given) != 1 or not self._is_ours(name_of(given[0].decode("latin-1"))):
            raise Refusal(400, "bad_host", "this server does not go by that name: add it with --allow-host")
        length = next((value for key, value in scope["headers"] if key == b"content-length"), b"0")
        if length.isdigit() and int(length) > self._limits.body_bytes:
            raise self._too_large()

    def _is_ours(self, name: str) -> bool:
        return name in self._names or (self._any_address and _is_address(name))

    async def _body(self, receive: Receive) -> Receive:
        """Take the body in, as far as it is allowed to go; then what follows it (a client that leaves)."""
        parts: list[bytes] = []
        size, more = 0, True
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return _replay([message], receive)
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self._limits.body_bytes:
                        raise self._too_large()
                    more = message.get("more_body", False)
        except TimeoutError:
            seconds = self._limits.body_seconds
            raise Refusal(408, "too_slow", f"the request did not arrive within {seconds:g} s: send it again") from None
        return _replay([{"type": "http.request", "body": b"".join(parts), "more_body": False}], receive)

    async def _drain(self, receive: Receive) -> None:
        """Let a client that still sends finish, within reason: cut off, it would never see why it is refused."""
        left = DRAIN * self._limits.body_bytes
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return

    async def _take_turns(self) -> None:
        """Each turn of the event loop reads one request: 200 at once must not keep /health waiting for all of them."""
        async with self._door:
            await asyncio.sleep(0)

    def _too_large(self) -> Refusal:
        return Refusal(413, "body_too_large", f"a request may have {self._limits.body_bytes} bytes: send fewer vectors")


class _Answer:
    """`send` with our headers on it."""

    def __init__(self, send: Send) -> None:
        self._send, self.started, self.is_stream = send, False, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            headers = dict(HEADERS)
            given = {key.decode("latin-1").lower(): value for key, value in message.get("headers", [])}
            self.is_stream = given.get("content-type", b"").startswith(b"text/event-stream")
            if "cache-control" not in given:
                # Pages and scripts are asked for again and mostly found unchanged; answers are nobody's to keep.
                headers["cache-control"] = "no-cache" if "etag" in given else "no-store"
            ours = [(key.encode(), value.encode()) for key, value in headers.items()]
            message = {**message, "headers": [*message.get("headers", []), *ours]}
        await self._send(message)


def client_of(scope: Scope) -> str:
    """Who shares one allowance: an IPv4 address, or the network of an IPv6 one, of which a client has many."""
    return client_key((scope.get("client") or ("unknown", 0))[0])


def client_key(host: str) -> str:
    """The same of an address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:  # how a socket for both shows an IPv4 client
        return str(address.ipv4_mapped)
    if address.version == 6 and not address.is_loopback:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def name_of(host: str) -> str:
    """The name in a Host header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _replay(messages: list[Message], receive: Receive) -> Receive:
    waiting = list(messages)

    async def again() -> Message:
        return waiting.pop(0) if waiting else await receive()

    return again
