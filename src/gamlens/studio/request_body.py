"""Limits on the body of a request: how many bytes it may have, and how long it may take to arrive."""

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

SECONDS_BETWEEN_PARTS, SECONDS_PER_BODY = 20.0, 300.0
AsgiEvent = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiEvent]]


class RefusedBodyError(Exception):
    """A body that is too large (status 413) or arrives too slowly (status 408)."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class LimitedBody:
    """Receives the events of a request and counts the bytes of its body while they arrive.

    When there are more than `most` bytes, or they come too slowly, `refused` is set, and raised to whoever reads on.
    """

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive, self._most = receive, most
        self._count, self._ended = 0, False
        self._deadline = time.monotonic() + SECONDS_PER_BODY
        self.refused: RefusedBodyError | None = None

    async def receive(self) -> AsgiEvent:
        if self.refused is not None:
            raise self.refused
        if self._ended:
            return await self._receive()
        patience = min(SECONDS_BETWEEN_PARTS, self._deadline - time.monotonic())
        try:
            event = await asyncio.wait_for(self._receive(), max(patience, 0.0))
        except TimeoutError:
            raise self._refuse(408, "Refused: the request arrives too slowly.") from None
        if event["type"] != "http.request":
            self._ended = True
            return event
        self._count += len(event.get("body", b""))
        self._ended = not event.get("more_body", False)
        if self._count > self._most:
            raise self._refuse(413, f"Refused: the request exceeds {self._most} bytes, the maximum allowed size.")
        return event

    def _refuse(self, status: int, reason: str) -> RefusedBodyError:
        self.refused = RefusedBodyError(status, reason)
        return self.refused
