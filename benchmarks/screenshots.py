"""Takes the pictures of the studio for the docs in a real browser: docs/images/studio-class.png and studio-pair.png.

Needs chromium and playwright. With --all it also takes pictures of three methods, Eq. 4, the dark page and phone
widths, for inspection.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
from pathlib import Path
from typing import Any

from PIL import Image

from gamlens.studio import Studio, launch

HEAD = (0.68, 0.385)
SCALE = 1.25


def window(browser: Any, studio: Studio, *, width: int = 1280, height: int = 860) -> Any:
    """Open the page and wait until both tabs show their first example."""
    page = browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=SCALE)
    page.goto(studio.url)
    page.wait_for_selector("#class-stage figure img")
    page.wait_for_timeout(800)
    return page


def pair_tab(page: Any, *, spot: tuple[float, float] | None = HEAD) -> None:
    page.get_by_role("tab", name="Why similar?").click()
    page.wait_for_selector("#pair-stage figure img")
    page.wait_for_timeout(500)
    if spot is not None:
        frame = page.locator("#pair-stage .gl-frame").first
        box = frame.bounding_box()
        frame.click(position={"x": spot[0] * box["width"], "y": spot[1] * box["height"]})
        page.wait_for_selector("#pair-stage .gl-dot")
        page.mouse.move(0, 0)
        page.wait_for_timeout(500)


def view(page: Any, tab: str, label: str) -> None:
    page.locator(f"#{tab}-view").get_by_label(label).check()
    page.wait_for_timeout(900)


def shoot(page: Any, file: Path) -> None:
    """Save the whole page as a PNG."""
    Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB").save(file, optimize=True)
    print(file)
    page.close()


def extras(browser: Any, studio: Studio, out: Path) -> None:
    """Take the further pictures of --all."""
    for tab in ("class", "pair"):
        for name, label in (("three", "Three methods"), ("evidence", "Eq. 4")):
            page = window(browser, studio)
            if tab == "pair":
                pair_tab(page, spot=None)
            view(page, tab, label)
            shoot(page, out / f"{tab}-{name}.png")
        for width in (390, 768):
            page = window(browser, studio, width=width, height=844)
            if tab == "pair":
                pair_tab(page)
            shoot(page, out / f"{tab}-{width}.png")
        page = window(browser, studio)
        page.locator("#dark").click()
        if tab == "pair":
            pair_tab(page, spot=None)
        page.wait_for_timeout(400)
        shoot(page, out / f"{tab}-dark.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--all", action="store_true", help="also take pictures of every view and width")
    parser.epilog = "example: python benchmarks/screenshots.py --all --out shots"
    options = parser.parse_args()
    place = shutil.which("chromium") or shutil.which("google-chrome")
    if place is None:
        sys.exit("No chromium was found: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    options.out.mkdir(parents=True, exist_ok=True)
    with launch() as studio, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=place, args=["--no-sandbox", "--disable-gpu"])
        shoot(window(browser, studio), options.out / "studio-class.png")
        page = window(browser, studio)
        pair_tab(page)
        shoot(page, options.out / "studio-pair.png")
        if options.all:
            extras(browser, studio, options.out)
        browser.close()


if __name__ == "__main__":
    main()
