"""Simulates a visitor of the studio without a browser, by sending the HTTP requests of the page."""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path
from typing import Any

import httpx

from gamlens.studio import Studio
from gamlens.studio.controls import Controls


def values(controls: Controls) -> list[Any]:
    """Controls as the page sends them."""
    return [list(value) if isinstance(value, tuple) else value for value in astuple(controls)]


class Visitor:
    """A visitor with a session of its own."""

    def __init__(self, studio: Studio, session: str) -> None:
        self.studio, self.session = studio, session
        self.http = httpx.Client(base_url=studio.url, timeout=60)

    def upload(self, file: Path) -> dict[str, Any]:
        answer = self.http.post("gradio_api/upload", files={"files": (file.name, file.read_bytes())})
        answer.raise_for_status()
        return {"path": answer.json()[0], "meta": {"_type": "gradio.FileData"}, "orig_name": file.name}

    def call(self, name: str, data: list[Any], event: dict[str, Any] | None = None, *, turn: int = 0) -> list[Any]:
        """Call the page's function of that name, the first or a later one, and return its answer."""
        number = [number for number, fn in self.studio.page.fns.items() if fn.name == name][turn]
        body = {"data": data, "fn_index": number, "session_hash": self.session, "event_data": event}
        if not self.studio.page.fns[number].queue:
            answer = self.http.post("gradio_api/run/predict", json=body)
            answer.raise_for_status()
            return list(answer.json()["data"])
        joined = self.http.post("gradio_api/queue/join", json=body)
        joined.raise_for_status()
        with self.http.stream("GET", "gradio_api/queue/data", params={"session_hash": self.session}) as stream:
            for line in stream.iter_lines():
                said = json.loads(line.removeprefix("data:")) if line.startswith("data:") else {}
                if said.get("msg") == "process_completed":
                    assert said["success"], said
                    found: list[Any] = said["output"]["data"]
                    return found
        raise AssertionError("the answer never came")
