"""The gate in front of the studio's server: who may send requests, to which addresses, and how large.

A page of another site can make a browser send requests to this machine, and by DNS rebinding even under a host name of
its own. So a request must name a host that the server was started for, come from the page itself or from no page at
all, and go to one of the few addresses that the page uses; uploads to gradio's cache are not among them, since images
travel inside messages. Everything else is answered by one sentence.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from time import monotonic
from typing import Any, TypeAlias

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

MAX_BODY = 16_000_000  # bytes of a request: an image in base64, and a little more
SMALL_BODY = 64_000  # bytes of a request that does not count towards the total
MAX_TOTAL = 64_000_000  # bytes of larger requests within WINDOW
WINDOW = 10.0  # seconds
MAX_PATH = 300  # characters
MAX_SECONDS = 60.0  # that a request may take to arrive

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
ALL_INTERFACES = frozenset({"", "0.0.0.0", "::", "[::]"})
READ = frozenset(
    {"/", "/config", "/theme.css", "/favicon.ico", "/manifest.json", "/robots.txt"}
    | {f"/gradio_api/{name}" for name in ("app_id", "info", "queue/data", "theme.css")}
)
READ_BELOW = ("/assets/", "/static/", "/svelte/", "/gradio_api/heartbeat/")
SENT = frozenset(f"/gradio_api/{name}" for name in ("queue/join", "reset", "cancel"))

# Gradio builds its page with inline scripts and evaluates the JavaScript of components; nothing comes from elsewhere.
POLICY = {
    "default-src": "'self'",
    "script-src": "'self' 'unsafe-inline' 'unsafe-eval'",
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data: blob:",
    "font-src": "'self' data:",
    "object-src": "'none'",
    "base-uri": "'self'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
}
HEADERS = {
    "content-security-policy": "; ".join(f"{name} {value}" for name, value in POLICY.items()),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
_log = logging.getLogger(__name__)


def guard(app: Application, host: str, names: Collection[str] = ()) -> Application:
    """An application behind the gate.

    Args:
        app: an ASGI application.
        host: the address that the server listens on.
        names: further host names under which it may be used, for instance behind a proxy.
    """
    named = frozenset(name.lower() for name in names)
    inner = OwnOrigin(OpenPaths(BodyLimit(app)), known_hosts(host, names), named)
    return SecurityHeaders(ErrorSentences(inner))


def known_hosts(host: str, names: Collection[str] = ()) -> frozenset[str]:
    """The host names that requests may use, for a server that listens on `host`.

    >>> sorted(known_hosts("127.0.0.1", ["studio.example"]))
    ['127.0.0.1', '[::1]', 'localhost', 'studio.example']
    """
    own = {f"[{host}]" if ":" in host and not host.startswith("[") else host.lower()}
    if host in ALL_INTERFACES:
        machine = socket.gethostname().lower()
        own = {*LOOPBACK, machine, f"{machine}.local"}
    elif own & LOOPBACK:
        own = set(LOOPBACK)
    return frozenset(own | {name.lower() for name in names})


class OwnOrigin:
    """ASGI middleware that answers 403 unless host and origin of a request are those of the page.

    The port of a host is not checked, because tunnels and containers change it, and a dot at its end is the same name.
    An origin must be the host with its port, so that other servers of this machine cannot use the page; http or https,
    because a proxy may speak TLS.

    Args:
        app: the application behind.
        hosts: known host names, see `known_hosts`; the address of the connection itself is always known.
        origins: host names of pages that may send requests under another host name, because a proxy changes it.
    """

    def __init__(self, app: Application, hosts: frozenset[str], origins: frozenset[str] = frozenset()) -> None:
        self.app, self.hosts, self.origins = app, hosts, origins

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        if scope["type"] == "websocket":  # the page does not use any
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] == "http" and not self._is_own(scope):
            await _answer(send, 403, "this request does not come from the page of this server; open its own address")
            return
        await self.app(scope, receive, send)

    def _is_own(self, scope: Message) -> bool:
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1").lower())
        hosts = headers.get("host", [])
        server = scope.get("server") or ("", None)
        if len(hosts) != 1 or _host_name(hosts[0]) not in self.hosts | {_bracketed(str(server[0]).lower())} - {""}:
            return False
        if any(not self._is_own_origin(origin, hosts[0]) for origin in headers.get("origin", [])):
            return False
        # Browsers also say where a request without an origin comes from: other sites may link to the page, no more.
        if set(headers.get("sec-fetch-site", [])) <= {"same-origin", "none"}:
            return True
        kind = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
        return scope["method"] == "GET" and kind == (["navigate"], ["document"])

    def _is_own_origin(self, origin: str, host: str) -> bool:
        scheme, _, rest = origin.partition("://")
        return scheme in ("http", "https") and (rest == host or _host_name(rest) in self.origins)


class OpenPaths:
    """ASGI middleware that answers 404 to everything but what the page uses."""

    def __init__(self, app: Application) -> None:
        self.app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        if scope["type"] != "http" or _is_open(scope["method"], scope["path"]):
            await self.app(scope, receive, send)
        else:
            await _answer(send, 404, "there is nothing at this address")


def _is_open(method: str, path: str) -> bool:
    if len(path) > MAX_PATH:
        return False
    if method == "POST":
        return path in SENT
    return method in ("GET", "HEAD") and (path in READ or path.startswith(READ_BELOW))


class BodyLimit:
    """ASGI middleware that stops requests that are too large, too slow, or too many large ones in a short time.

    Args:
        app: the application behind.
        limit: bytes of a request; a larger one is answered 413, whatever its header says.
        total: bytes of all requests above `small` within WINDOW seconds; those beyond it are answered 503.
        small: bytes of a request that does not count towards the total.
        seconds: that a request may take to arrive; a slower one is answered 408.
    """

    def __init__(
        self,
        app: Application,
        limit: int = MAX_BODY,
        total: int = MAX_TOTAL,
        small: int = SMALL_BODY,
        seconds: float = MAX_SECONDS,
    ) -> None:
        self.app, self.limit, self.total, self.small, self.seconds = app, limit, total, small, seconds
        self._received: deque[tuple[float, int]] = deque()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        size = int(declared) if declared.isascii() and declared.isdigit() else self.limit + 1
        problem = self._problem(size, size if size > self.small else 0)
        if problem is not None:
            await _answer(send, *problem)
            return
        body = _Body(receive, self)
        try:
            await self.app(scope, body.receive, body.hold(send))
        except Exception:
            if body.problem is None:
                raise
        if body.problem is not None:
            await _answer(send, *body.problem)

    def _problem(self, size: int, counted: int) -> tuple[int, str] | None:
        """Status and sentence for a request of this size, of which `counted` bytes are still to be counted."""
        if size > self.limit:
            return 413, f"a request may have at most {self.limit / 1e6:.0f} MB; choose a smaller image"
        while self._received and self._received[0][0] < monotonic() - WINDOW:
            self._received.popleft()
        if counted and sum(bytes_ for _, bytes_ in self._received) + counted > self.total:
            return 503, "too many large images at once; try again in a moment"
        return None

    def count(self, size: int, new: int) -> tuple[int, str] | None:
        """Count `new` bytes of a request that has `size` so far; status and sentence if that is too much."""
        counted = 0 if size <= self.small else size if size - new <= self.small else new
        problem = self._problem(size, counted)
        if problem is None and counted:
            self._received.append((monotonic(), counted))
        return problem


class _Body:
    """The body of one request on its way to the application."""

    def __init__(self, receive: Receive, limit: BodyLimit) -> None:
        self._receive, self._limit = receive, limit
        self._size, self._complete, self._end = 0, False, asyncio.get_running_loop().time() + limit.seconds
        self.problem: tuple[int, str] | None = None

    async def receive(self) -> Message:
        """The next message; once there is a problem, the application sees a client that has disconnected."""
        if self._complete:  # then the application waits for the end of the connection, for any time
            return await self._receive()
        try:
            left = self._end - asyncio.get_running_loop().time()
            message = await asyncio.wait_for(self._receive(), max(left, 0))
        except asyncio.TimeoutError:
            self.problem = 408, "this request took too long to arrive; try again"
            return {"type": "http.disconnect"}
        new = len(message.get("body", b""))
        self._size += new
        self._complete = not message.get("more_body", False)
        self.problem = self._limit.count(self._size, new)
        return message if self.problem is None else {"type": "http.disconnect"}

    def hold(self, send: Send) -> Send:
        """A `send` that drops what the application answers to a request that was stopped."""

        async def held(message: Message) -> None:
            if self.problem is None:
                await send(message)

        return held


class ErrorSentences:
    """ASGI middleware that puts a sentence in place of the server's own errors.

    A request that fails before it is queued was not made by the page, hence 400 for what was sent and 500 otherwise.
    """

    def __init__(self, app: Application) -> None:
        self.app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, and replace its answer if that is an error of the server."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = failed = False

        async def checked(message: Message) -> None:
            nonlocal started, failed
            if message["type"] == "http.response.start":
                failed = message["status"] == 500
                started = not failed
            if not failed:
                await send(message)

        try:
            await self.app(scope, receive, checked)
        except Exception as error:
            if started:
                raise  # the server cuts the connection, so that the client notices that the answer is incomplete
            failed = True
            _log.warning("studio: %s %.200s failed: %.200r", scope["method"], scope["path"], error)
        if failed:
            status = 400 if scope["method"] == "POST" else 500
            await _answer(send, status, "this request cannot be answered; reload the page and try again")


class SecurityHeaders:
    """ASGI middleware that adds HEADERS to every answer."""

    def __init__(self, app: Application) -> None:
        self.app = app
        self._headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, and add to the headers of its answer."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *self._headers]
            await send(message)

        await self.app(scope, receive, with_headers)


def _host_name(host: str) -> str:
    """A host without its port and without the dot at its end; empty if it is not well-formed."""
    name, _, port = host.rpartition(":") if host.rfind(":") > host.rfind("]") else (host, "", "")
    if (port and not port.isdigit()) or name.startswith("[") != name.endswith("]"):
        return ""
    return name.removesuffix(".")


def _bracketed(address: str) -> str:
    """An address as it stands in a host header."""
    return f"[{address}]" if ":" in address else address


async def _answer(send: Send, status: int, sentence: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"foveate studio: {sentence}".encode()})
