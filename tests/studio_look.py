"""A visitor's browser window, for the studio's tests in a real browser."""

from __future__ import annotations

import base64
import io
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gamlens.studio import Studio

PATIENCE = 60_000


class Look:
    """A visitor's window, with everything that went wrong in it."""

    first_stage = "#class-stage figure img"  # what is waited for when the page opens

    def __init__(self, browser: Any, studio: Studio, *, width: int = 1280, height: int = 900) -> None:
        self.studio = studio
        self.context = browser.new_context(viewport={"width": width, "height": height}, accept_downloads=True)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.troubles: list[str] = []
        self.page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        self.page.on("console", lambda said: self._heard(said))
        self.page.on("request", lambda request: self._asked(request.url))
        with self.page.expect_response(lambda answer: "/heartbeat/" in answer.url) as heartbeat:
            self.page.goto(studio.url)
        # The studio sees that the window was closed by the end of this answer.
        self.session = str(heartbeat.value.url).split("?", 1)[0].rsplit("/", 1)[1]
        self.page.wait_for_selector(self.first_stage)

    def _heard(self, said: Any) -> None:
        if said.type == "error":
            self.troubles.append(f"console: {said.text}")

    def _asked(self, url: str) -> None:
        if not url.startswith((self.studio.url, "data:", "blob:")):
            self.troubles.append(f"outside request: {url}")

    def sources(self, tab: str) -> list[str]:
        found: list[str] = self.page.eval_on_selector_all(f"#{tab}-stage img", "all => all.map(one => one.src)")
        return found

    def pixels(self, tab: str) -> list[np.ndarray[Any, Any]]:
        """The pixels of each picture, as the browser has decoded them."""
        uris = self.page.evaluate(
            """async tab => {
              const all = [...document.querySelectorAll(`#${tab}-stage img`)];
              await Promise.all(all.map(one => one.decode()));
              return all.map(one => {
                const canvas = document.createElement('canvas');
                [canvas.width, canvas.height] = [one.naturalWidth, one.naturalHeight];
                canvas.getContext('2d').drawImage(one, 0, 0);
                return canvas.toDataURL();
              });
            }""",
            tab,
        )
        files = [base64.b64decode(uri.split(",", 1)[1]) for uri in uris]
        return [np.asarray(Image.open(io.BytesIO(file)).convert("RGB"), dtype=float) for file in files]

    def painted(self, tab: str) -> np.ndarray[Any, Any]:
        """The first picture as it is on the screen."""
        shot = self.page.locator(f"#{tab}-stage .gl-frame").first.screenshot()
        return np.asarray(Image.open(io.BytesIO(shot)).convert("RGB"), dtype=float)

    def changed(self, tab: str, act: Callable[[], object]) -> None:
        """`act`, then wait until the stage shows other pictures."""
        before = self.sources(tab)
        act()
        self.page.wait_for_function(
            "([tab, before]) => JSON.stringify([...document.querySelectorAll(`#${tab}-stage img`)].map(one => one.src))"
            " !== before",
            arg=[tab, json.dumps(before, separators=(",", ":"))],
        )

    def choose(self, name: str, option: str) -> None:
        self.page.locator(f"#{name} input").click()
        self.page.get_by_role("option", name=option, exact=True).click()

    def slide(self, name: str, key: str) -> None:
        """By the keyboard."""
        handle = self.page.locator(f"#{name} input[type=range]")
        handle.focus()
        handle.press(key)

    def give(self, name: str, file: Path) -> None:
        """Put a file where a photo is, or was. The studio has answered to the empty place before the file comes."""
        remove = self.page.locator(f"#{name}").get_by_label(re.compile("remove|clear", re.IGNORECASE))
        if remove.count():
            remove.first.click()
            tab = "class" if name == "photo" else "pair"
            self.page.wait_for_function("tab => !document.querySelector(`#${tab}-stage figure img`)", arg=tab)
        self.page.locator(f"#{name} input[type=file]").set_input_files(str(file))

    def text(self, tab: str) -> str:
        return str(self.page.locator(f"#{tab}-stage").inner_text())

    def close(self) -> None:
        """Close the window, and wait until its session has ended."""
        self.context.close()
        until(lambda: self.studio.actions.sessions.find(self.session) is None)


def until(condition: Callable[[], bool]) -> None:
    """Wait until the studio's threads have made a condition true."""
    end = time.monotonic() + PATIENCE / 1000
    while not condition():
        assert time.monotonic() < end, "this never came true"
        time.sleep(0.05)


def differs(before: list[np.ndarray[Any, Any]], after: list[np.ndarray[Any, Any]]) -> bool:
    return len(before) != len(after) or any(
        a.shape != b.shape or np.abs(a - b).mean() > 0.05 for a, b in zip(before, after, strict=True)
    )
