"""Security of the studio's server: which requests it refuses, and the headers that restrict the browser."""

import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from typing import Any

CONTENT_SECURITY_POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; font-src 'self' data:; "
    "script-src 'self' 'unsafe-inline' 'unsafe-eval'; connect-src 'self' data: blob:; worker-src 'self' blob:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'"
)
REFUSED_PATHS = ("file=http", "/proxy=", "deep_link")


def is_loopback(host: str) -> bool:
    """Whether `host` can only be reached from this machine."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ip_address(host).is_loopback
    return False


class SecurityMiddleware:
    """ASGI middleware around every request of the page.

    Response headers forbid the browser to load anything from other addresses. Requests that would make the server
    fetch a URL are refused. With `local` only requests to loopback names are answered. This stops DNS rebinding, where
    a site makes its own name resolve to this machine.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], local: bool) -> None:
        self.app, self.local = app, local

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        async def guarded(event: MutableMapping[str, Any]) -> None:
            if event["type"] == "http.response.start":
                kept = [(name, value) for name, value in event["headers"] if name.lower() != b"content-security-policy"]
                event["headers"] = [
                    *kept,
                    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
                    (b"referrer-policy", b"no-referrer"),
                    (b"x-content-type-options", b"nosniff"),
                ]
            await send(event)

        path = str(scope.get("path", "")).lower()
        asked = dict(scope.get("headers", ())).get(b"host", b"").decode("latin-1")
        stranger = self.local and not is_loopback(asked.rsplit(":", 1)[0].strip("[]"))
        if scope["type"] == "http" and (stranger or any(part in path for part in REFUSED_PATHS)):
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send(
                {"type": "http.response.body", "body": b"Refused: this studio answers only requests of its own page."}
            )
            return
        await self.app(scope, receive, guarded if scope["type"] == "http" else send)
