"""Security of the studio's server: which requests it refuses, and the headers that restrict the browser."""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any

from gamlens.errors import GamlensError
from gamlens.studio.access_rules import AccessRules, network_of
from gamlens.studio.login_throttle import LoginThrottle
from gamlens.studio.request_body import AsgiEvent, LimitedBody, Receive, RefusedBodyError
from gamlens.studio.upload_route import save_upload
from gamlens.studio.uploads import MOST_BYTES, UploadedFiles

CONTENT_SECURITY_POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; font-src 'self' data:; "
    "script-src 'self' 'unsafe-inline' 'unsafe-eval'; connect-src 'self' data: blob:; worker-src 'self' blob:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'"
)
# What the page uses. All other addresses of gradio are refused, so that a new version cannot open one unseen.
LOGIN, UPLOAD, PROGRESS, FILE = "/login", "/upload", "/upload_progress", "/file="
JOIN, RUN_NOW = "/queue/join", "/run/predict"  # events that wait for their turn, and those that do not
OPEN_PATHS = frozenset({"/", LOGIN, "/theme.css", "/favicon.ico", "/robots.txt", "/manifest.json"})
OPEN_FOLDERS = ("/assets/", "/static/", "/svelte/")
API = "/gradio_api"
MEMBER_PATHS = frozenset(
    {"/config", "/logout"}
    | {
        API + path
        for path in (UPLOAD, PROGRESS, JOIN, RUN_NOW, "/queue/data", "/cancel", "/reset", "/info", "/theme.css")
    }
    | {API + path for path in ("/login_check", "/user", "/app_id", "/startup-events")}
)
MEMBER_FOLDERS = (API + FILE, f"{API}/heartbeat/")
LOGIN_BYTES, JSON_BYTES, UPLOAD_BYTES = 2**14, 2**20, MOST_BYTES + 2**16
LONGEST_SESSION_ID, MOST_UNREAD, MOST_UNREAD_IN_ALL = 64, 32, 256
SECONDS_TO_READ_REFUSAL = 2.0
ARRIVED = "gamlens_arrived"  # the name in a request's state of the time at which an event of the page arrived
NOT_ITS_PAGE = "Refused: this studio answers only requests of its own page."
Send = Callable[[AsgiEvent], Awaitable[None]]


@dataclass(frozen=True)
class Refusal:
    """The answer to a request that is refused."""

    status: int
    reason: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True, eq=False)
class AskedRequest:
    """What the rules need to know about a request."""

    scope: MutableMapping[str, Any]
    method: str
    path: str
    headers: dict[str, str]
    visitor: str

    @classmethod
    def of(cls, scope: MutableMapping[str, Any]) -> "AskedRequest":
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
        path = path[len(root) :] if root and path.startswith(f"{root}/") else path
        plain = path if FILE in path else path.rstrip("/") or "/"
        return cls(scope, scope.get("method", ""), plain, headers, network_of((scope.get("client") or ("", 0))[0]))

    @property
    def is_open(self) -> bool:
        """Whether visitors who did not log in may ask for this: the page of the login and its files."""
        return self.path in OPEN_PATHS or self.path.startswith(OPEN_FOLDERS)

    @property
    def is_of_members(self) -> bool:
        return self.path in MEMBER_PATHS or self.path.startswith(MEMBER_FOLDERS)

    @property
    def most_bytes(self) -> int:
        """How large the body may be."""
        return {LOGIN: LOGIN_BYTES, API + UPLOAD: UPLOAD_BYTES}.get(self.path, JSON_BYTES)

    def is_logged_in(self) -> bool:
        """Whether the request carries the cookie of a login. gradio keeps the valid ones in `tokens`."""
        app = self.scope["app"]
        try:
            cookies = SimpleCookie(self.headers.get("cookie", ""))
        except CookieError:
            return False
        names = (f"access-token-{app.cookie_id}", f"access-token-unsecure-{app.cookie_id}")
        return any(name in cookies and cookies[name].value in app.tokens for name in names)


@dataclass(frozen=True, eq=False)
class SecurityMiddleware:
    """ASGI middleware around every request of the page.

    Only requests that the page sends are answered: see `AccessRules` for those that other sites cause. Where visitors
    log in, everything but the page of the login needs one, before any of the body is read. Bodies are limited. Uploads
    are saved here, with a limit per visitor. Response headers forbid the browser to load anything from other addresses
    and other sites to show the page in a frame.
    """

    app: Callable[..., Awaitable[None]]
    rules: AccessRules
    files: UploadedFiles
    throttle: LoginThrottle = field(default_factory=LoginThrottle)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        if scope["type"] == "websocket":  # the page uses none
            await send({"type": "websocket.close", "code": 1008})
            return
        asked = AskedRequest.of(scope)
        refusal = self._refusal(asked)
        body = LimitedBody(receive, asked.most_bytes)
        restricted = self._restricted(send, body)
        if refusal is not None:
            await _refuse(refusal, receive, restricted)
            return
        try:
            await self._answer(asked, body.receive, restricted)
        except RefusedBodyError as error:
            await _refuse(Refusal(error.status, str(error)), receive, restricted)

    def _refusal(self, asked: AskedRequest) -> Refusal | None:
        """Why a request is refused before its body is read; None if it is not."""
        host = asked.headers.get("host", "")
        if not self.rules.is_known_host(host):
            return Refusal(403, f"{NOT_ITS_PAGE} If {host[:99]!r} is one of its names, start it with --public-url.")
        if self.rules.is_of_another_site(asked.method, asked.path, asked.headers):
            return Refusal(403, NOT_ITS_PAGE)
        starting = asked.path == f"{API}/startup-events" and not asked.scope["app"].startup_events_triggered
        if self.rules.login and not (asked.is_open or starting or asked.is_logged_in()):
            return Refusal(401, "Refused: log in first.")
        if not (asked.is_open or asked.is_of_members) or not self._is_own_file(asked.path):
            return Refusal(403, NOT_ITS_PAGE)
        length = asked.headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > asked.most_bytes:
            return Refusal(413, f"Refused: the request exceeds {asked.most_bytes} bytes, the maximum allowed size.")
        return None

    def _is_own_file(self, path: str) -> bool:
        """Whether a path asks for no file, or for one in the studio's folder. Links and `..` are resolved first."""
        if not path.startswith(API + FILE):
            return True
        name = path.removeprefix(API + FILE)
        try:
            return os.path.isabs(name) and self.files.folder in Path(name).resolve().parents
        except (OSError, ValueError):
            return False

    async def _answer(self, asked: AskedRequest, receive: Receive, send: Send) -> None:
        if asked.method == "POST" and asked.path == LOGIN:
            await self._log_in(asked, receive, send)
        elif asked.method == "POST" and asked.path == API + UPLOAD:
            try:
                saved = await save_upload(self.files, asked.visitor, asked.scope, receive)
            except GamlensError as error:
                status = 429 if "Too many" in str(error) else 400
                await _refuse(Refusal(status, str(error)), receive, send)
                return
            await _send_whole(send, 200, b"application/json", saved)
        elif asked.path == API + PROGRESS:  # the page asks how far an upload is, but also works without knowing it
            await _send_whole(send, 200, b"text/event-stream", b'data: {"msg": "done"}\n\n')
        elif asked.method == "POST" and asked.path in (API + JOIN, API + RUN_NOW):
            await self._event(asked, receive, send)
        else:
            headers = [(name, value) for name, value in asked.scope["headers"] if name.lower() != b"range"]
            await self.app({**asked.scope, "headers": headers}, receive, send)

    async def _log_in(self, asked: AskedRequest, receive: Receive, send: Send) -> None:
        """Let gradio check the password, unless this address has failed too often."""
        attempt = self.throttle.begin(asked.visitor)
        if attempt.wait:
            seconds = str(int(attempt.wait) + 1)
            retry = ((b"retry-after", seconds.encode()),)
            refusal = Refusal(429, f"Too many logins failed: try again in {seconds} seconds.", retry)
            await _refuse(refusal, receive, send)
            return
        await asyncio.sleep(attempt.delay)

        async def noting(event: AsgiEvent) -> None:
            if event["type"] == "http.response.start" and event["status"] == 200:
                self.throttle.succeeded(asked.visitor)
            await send(event)

        await self.app(asked.scope, receive, noting)

    async def _event(self, asked: AskedRequest, receive: Receive, send: Send) -> None:
        """Pass an event of the page on, unless its visitor leaves the answers to earlier ones unread."""
        body = b""
        while True:
            event = await receive()
            if event["type"] != "http.request":
                return
            body += event.get("body", b"")
            if not event.get("more_body", False):
                break
        if (refusal := _too_many_unread(asked.scope["app"], body)) is not None:
            await _refuse(refusal, receive, send)
            return
        asked.scope.setdefault("state", {})[ARRIVED] = time.monotonic()
        first: list[AsgiEvent] = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> AsgiEvent:
            return first.pop() if first else await receive()

        await self.app(asked.scope, again, send)

    def _restricted(self, send: Send, body: LimitedBody) -> Send:
        """`send` with the headers that restrict the browser."""
        policy = f"{CONTENT_SECURITY_POLICY}; frame-ancestors {self.rules.frame_ancestors}"
        added = {
            b"content-security-policy": policy.encode(),
            b"referrer-policy": b"no-referrer",
            b"x-content-type-options": b"nosniff",
            b"cross-origin-resource-policy": b"same-origin",
        }
        if not self.rules.notebook:
            added[b"x-frame-options"] = b"DENY"

        async def restricted(event: AsgiEvent) -> None:
            if event["type"] == "http.response.start":
                kept = [(name, value) for name, value in event["headers"] if name.lower() not in added]
                event = {**event, "headers": [*kept, *added.items()]}
                if body.refused is not None:
                    event["status"] = body.refused.status
            await send(event)

        return restricted


def _too_many_unread(app: Any, body: bytes) -> Refusal | None:
    """Refuse an event whose visitor has many unread answers. Of all visitors, the oldest unread answers are dropped."""
    try:
        session = json.loads(body)["session_hash"]
        if not isinstance(session, str) or len(session) > LONGEST_SESSION_ID:
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        return Refusal(400, "Refused: the request is no event of the page.")
    waiting = app.get_blocks()._queue.pending_messages_per_session
    if session in waiting and waiting[session].qsize() > MOST_UNREAD:
        return Refusal(429, "Refused: read the earlier answers first.")
    excess = sum(queue.qsize() for queue in waiting.values()) - MOST_UNREAD_IN_ALL
    for queue in waiting.values():
        while excess > 0 and not queue.empty():
            queue.get_nowait()
            excess -= 1
    return None


async def _send_whole(send: Send, status: int, kind: bytes, text: bytes) -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


async def _refuse(refusal: Refusal, receive: Receive, send: Send) -> None:
    """Answer at once and end the connection. What the browser still sends is dropped for a moment.

    If the connection ended at once, a browser in the middle of a large request would not read the answer.
    """
    text = refusal.reason.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(text)).encode())]
    headers += [*refusal.headers, (b"connection", b"close")]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": text, "more_body": True})
    end = time.monotonic() + SECONDS_TO_READ_REFUSAL
    try:
        while (left := end - time.monotonic()) > 0:
            event = await asyncio.wait_for(receive(), left)
            if event["type"] != "http.request" or not event.get("more_body", False):
                break
    except (TimeoutError, RefusedBodyError):
        pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})
