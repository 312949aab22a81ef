"""The view in a real Jupyter Lab in a real browser: two of them in one notebook, of a class and of a pair."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jupyter_lab import running_lab, write_notebook
from PIL import Image

from gamlens import Lens, notebook, render
from gamlens.data.photos import path
from gamlens.notebook.viewed_result import LONGER_SIDE

pytestmark = pytest.mark.slow
PATIENCE, STARTS_WITHIN = 120_000, 10_000  # milliseconds
VIEWS = ".gamlens-view[data-shown]"
VIEW_PAGE = Path(notebook.__file__).with_name("view.js")
CELLS = [
    """
from pathlib import Path
import torch, warnings
torch.set_num_threads(1)
warnings.simplefilter("ignore")
import gamlens
from gamlens.data.photos import path
lens = gamlens.Lens("efficientnet_lite0")
count = []
hook = lens.model.register_forward_hook(
    lambda module, args, output: (count.append(1), Path("forwards.txt").write_text(str(len(count))))[:0] or None
)
""",
    "result = lens.classify(path('cheetah'), n=2)\nresult",
    "pair = lens.compare(path('cheetah'), path('cheetah_face'), n=2)\npair",
    "print('all', 'done')",
]
Pixels = np.ndarray[Any, Any]


class LabPage:
    """A browser window with the notebook, and everything that it asked for."""

    def __init__(self, context: Any, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.requests: list[str] = []
        self.errors: list[str] = []
        context.on("request", lambda request: self.requests.append(request.url))
        self.page = context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.connected = False
        self.page.on("websocket", self._listen)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(f"{url}/lab/tree/view.ipynb")
        self.page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status='idle']")
        for _ in range(PATIENCE // 100):
            if self.connected:
                break
            self.page.wait_for_timeout(100)
        self.run_all()
        self.page.wait_for_selector(".jp-OutputArea-output:has-text('all done')")
        self.page.wait_for_function(f"() => document.querySelectorAll('{VIEWS}').length === 2")

    def _listen(self, socket: Any) -> None:
        """Note the address of a socket, and when the kernel has said hello."""
        self.requests.append(socket.url)

        def heard(data: Any) -> None:
            text = data if isinstance(data, bytes) else str(data).encode()
            self.connected = self.connected or b"kernel_info_reply" in text

        socket.on("framereceived", heard)

    def run_all(self) -> None:
        """Run all cells; again if Jupyter Lab, which was not ready, ignored the command or asked for a kernel."""
        from playwright.sync_api import TimeoutError as NotYet

        started = "() => !/^\\[\\s*\\]:?$/.test(document.querySelector('.jp-InputPrompt').textContent.trim())"
        for _ in range(PATIENCE // STARTS_WITHIN):
            self.page.get_by_role("menuitem", name="Run", exact=True).click()
            self.page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
            try:
                self.page.wait_for_function(started, timeout=STARTS_WITHIN)
            except NotYet:
                dialog = self.page.locator("dialog.jp-Dialog")
                if dialog.count():
                    self.page.keyboard.press("Escape")
                continue
            return
        raise AssertionError("No cell was run.")

    def view(self, number: int) -> Any:
        """The view of the class (0) or of the pair (1)."""
        return self.page.locator(VIEWS).nth(number)

    def pixels(self, number: int, side: int = 0) -> Pixels:
        data = self.view(number).locator("canvas").nth(side).evaluate("one => one.toDataURL()")
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(data.split(",")[1]))).convert("RGB")).astype(int)

    def answered(self, number: int, act: Callable[[], object]) -> None:
        """Do something that the kernel answers, and wait until the answer is drawn."""
        before = self.view(number).get_attribute("data-shown")
        act()
        self.page.wait_for_function(
            """([views, number, before]) => {
              const view = document.querySelectorAll(views)[number];
              return view.dataset.shown !== before && view.getAttribute("aria-busy") === "false";
            }""",
            arg=[VIEWS, number, before],
        )

    def drawn(self, number: int, act: Callable[[], object], side: int = 0) -> Pixels:
        """Do something that the browser draws by itself; returns the pixels when they have changed."""
        before = self.view(number).locator("canvas").nth(side).evaluate("one => one.toDataURL()")
        act()
        self.page.wait_for_function(
            "([views, at, side, before]) => "
            "document.querySelectorAll(views)[at].querySelectorAll('canvas')[side].toDataURL() !== before",
            arg=[VIEWS, number, side, before],
        )
        return self.pixels(number, side)

    @property
    def forwards(self) -> int:
        return int((self.folder / "forwards.txt").read_text())


@pytest.fixture(scope="module")
def lab(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabPage]:
    pytest.importorskip("jupyterlab")
    pytest.importorskip("anywidget")
    folder, home = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("home")
    write_notebook(folder / "view.ipynb", CELLS)
    with running_lab(folder, home) as url:
        context = browser.new_context(viewport={"width": 1400, "height": 2400})
        found = LabPage(context, url, folder)
        yield found
        outside = [
            one for one in found.requests if not one.startswith((url, url.replace("http", "ws"), "data:", "blob:"))
        ]
        context.close()
        assert outside == []
        assert found.errors == []


@pytest.fixture(scope="module")
def lens() -> Lens:
    return Lens("efficientnet_lite0")


def small(name: str) -> Image.Image:
    """A demo photo at the size of a view."""
    return render.thumbnail(Image.open(path(name)).convert("RGB"), LONGER_SIDE)


def overlay(result: Any, name: str, *, opacity: float) -> Pixels:
    """What gamlens draws for a result, at the size of a view."""
    photo = small(name)
    full = np.asarray(Image.fromarray(result.full().numpy()).resize(photo.size, Image.Resampling.BILINEAR))
    return np.asarray(render.overlay(photo, full.clip(0, 1), opacity=opacity)).astype(int)


def test_a_slider_changes_pixels_without_the_kernel(lab: LabPage, lens: Lens) -> None:
    """What is drawn is what `overlay` draws, at every opacity."""
    result, forwards = lens.classify(path("cheetah"), n=2), lab.forwards
    view, before = lab.view(0), lab.pixels(0)
    assert "Why cheetah?" in view.inner_text()
    assert np.abs(before - overlay(result, "cheetah", opacity=0.7)).mean() < 4
    slider = view.get_by_label("Opacity")
    plain = lab.drawn(0, lambda: slider.press("Home"))
    assert np.abs(plain - np.asarray(small("cheetah")).astype(int)).mean() < 4
    full = lab.drawn(0, lambda: slider.press("End"))
    assert np.abs(full - overlay(result, "cheetah", opacity=1.0)).mean() < 4
    assert np.abs(plain - full).mean() > 15
    lab.drawn(0, lambda: slider.fill("0.7"))
    assert np.array_equal(lab.pixels(0), before)
    lined = lab.drawn(0, lambda: view.get_by_label("Threshold").fill("0.5"))
    changed = np.abs(lined - before).any(axis=2)
    share = float((result.full() >= 0.5).float().mean())
    assert 0 < changed.mean() < 0.1  # lines around the region
    assert abs(float(view.locator("figcaption small").first.inner_text().split(" %")[0]) / 100 - share) < 0.01
    lab.drawn(0, lambda: view.get_by_label("Threshold").fill("0"))
    assert np.array_equal(lab.pixels(0), before)
    assert lab.forwards == forwards


def test_the_kernel_s_controls_take_one_forward(lab: LabPage, lens: Lens) -> None:
    forwards, before = lab.forwards, lab.pixels(0)
    view = lab.view(0)
    lab.answered(0, lambda: view.get_by_label("Method").select_option("grad_cam"))
    assert "Grad-CAM of 2 layers" in view.inner_text()
    lab.answered(0, lambda: view.get_by_label("Number of layers").fill("1"))
    assert "1 of" in view.inner_text()
    wanted = lens.classify(path("cheetah"), method="grad_cam", n=1)
    assert np.abs(lab.pixels(0) - overlay(wanted, "cheetah", opacity=0.7)).mean() < 4
    lab.answered(0, lambda: view.get_by_label("Refine").check())
    wanted = lens.classify(path("cheetah"), method="grad_cam", n=1, refine=True)
    assert np.abs(lab.pixels(0) - overlay(wanted, "cheetah", opacity=0.7)).mean() < 4
    assert np.abs(lab.pixels(0) - before).mean() > 3
    assert lab.forwards == forwards + 1
    lab.answered(0, lambda: view.get_by_label("Refine").uncheck())
    lab.answered(0, lambda: view.get_by_label("Number of layers").fill("2"))
    lab.answered(0, lambda: view.get_by_label("Method").select_option("gam"))
    assert np.array_equal(lab.pixels(0), before)
    assert lab.forwards == forwards + 1


def test_the_value_under_the_cursor(lab: LabPage, lens: Lens) -> None:
    view, full = lab.view(0), lens.classify(path("cheetah"), n=2).full()
    canvas, value = view.locator("canvas"), view.locator(".gamlens-value")
    box = canvas.bounding_box()
    for across, down in ((0.5, 0.5), (0.25, 0.75), (0.9, 0.1)):
        canvas.hover(position={"x": box["width"] * across, "y": box["height"] * down})
        lab.page.wait_for_function("one => one.textContent.startsWith('Pixel')", arg=value.element_handle())
        place, found = value.inner_text().removeprefix("Pixel (").split("): ")
        x, y = (int(number) for number in place.split(", "))
        assert abs(x - across * full.shape[1]) < 6
        assert abs(y - down * full.shape[0]) < 6
        assert abs(float(found) - float(full[y, x])) < 0.03
        assert view.locator(".gamlens-bar b").is_visible()
    lab.page.mouse.move(2, 2)
    lab.page.wait_for_function("one => one.textContent === ''", arg=value.element_handle())
    canvas.focus()
    canvas.press("ArrowRight")
    lab.page.wait_for_function("one => one.textContent.startsWith('Pixel')", arg=value.element_handle())
    assert view.locator(".gamlens-cross").count() == 1


def test_a_click_gives_matches(lab: LabPage, lens: Lens) -> None:
    """By mouse and by keyboard, in either photo, and then back to the maps."""
    view, maps, alone = lab.view(1), [lab.pixels(1, side) for side in (0, 1)], lab.pixels(0)
    forwards = lab.forwards
    canvases = [view.locator("canvas").nth(side) for side in (0, 1)]
    box = canvases[0].bounding_box()
    place = {"x": box["width"] * 0.6, "y": box["height"] * 0.4}
    lab.answered(1, lambda: canvases[0].click(position=place))
    assert "What matches the point?" in view.inner_text()
    assert view.locator(".gamlens-cell").count() == 1
    assert view.locator(".gamlens-spot").count() == 2
    width, height = Image.open(path("cheetah")).size
    wanted = lens.trace_pair(path("cheetah"), path("cheetah_face"), n=2).matches((0.6 * width, 0.4 * height))
    photo = small("cheetah_face")
    full = np.asarray(Image.fromarray(wanted.full().numpy()).resize(photo.size, Image.Resampling.BILINEAR))
    drawn = np.asarray(render.overlay(photo, full.clip(0, 1))).astype(int)
    assert np.abs(lab.pixels(1, 1) - drawn).mean() < 4
    assert np.abs(lab.pixels(1, 0) - np.asarray(small("cheetah")).astype(int)).mean() < 4
    assert f"adds {wanted.part:.3g} of {wanted.score:.3g}" in view.inner_text()
    first = lab.pixels(1, 1)
    lab.answered(1, lambda: canvases[0].press("Enter"))  # the middle of the photo, or where the cursor is
    canvases[0].press("ArrowDown")
    lab.answered(1, lambda: canvases[1].press("Enter"))
    assert not np.array_equal(lab.pixels(1, 1), first)
    lab.answered(1, lambda: view.get_by_role("button", name="Back to the maps").click())
    assert [np.array_equal(lab.pixels(1, side), maps[side]) for side in (0, 1)] == [True, True]
    assert view.locator(".gamlens-spot").count() == 0
    assert lab.forwards == forwards + 1  # both photos in one batch
    assert np.array_equal(lab.pixels(0), alone)  # the other view did not change


def test_both_views_work_at_once(lab: LabPage) -> None:
    """Both are asked before either has answered."""
    before = [lab.pixels(0), lab.pixels(1)]
    lab.answered(
        1,
        lambda: lab.answered(
            0, lambda: [lab.view(number).get_by_label("Method").select_option("layer_cam") for number in (0, 1)]
        ),
    )
    for number in (0, 1):
        assert "LayerCAM of 2 layers" in lab.view(number).inner_text()
        assert not np.array_equal(lab.pixels(number), before[number])
        lab.answered(number, lambda: lab.view(number).get_by_label("Method").select_option("gam"))  # noqa: B023
        assert np.array_equal(lab.pixels(number), before[number])


def test_every_control_has_a_name_and_errors_are_shown(lab: LabPage) -> None:
    for number in (0, 1):
        controls = lab.view(number).locator("select, input")
        for at in range(controls.count()):
            assert controls.nth(at).evaluate("one => one.labels.length") == 1
    alert = lab.view(0).get_by_role("alert")
    assert alert.count() == 0
    slider = lab.view(0).get_by_label("Number of layers")
    slider.evaluate("one => { one.max = 99; one.value = 99; one.dispatchEvent(new Event('input')); }")
    alert.wait_for()
    assert "99" in alert.inner_text()
    lab.answered(0, lambda: slider.fill("2"))
    assert alert.count() == 0


def test_dark_theme(lab: LabPage) -> None:
    """The colours are those of Jupyter's theme."""
    ink = "one => { const own = getComputedStyle(one); return [own.color, own.backgroundColor]; }"
    light = lab.view(0).evaluate(ink)
    lab.page.get_by_role("menuitem", name="Settings", exact=True).click()
    lab.page.locator(".lm-Menu-item", has_text="Theme").first.click()
    lab.page.locator(".lm-Menu-item", has_text="JupyterLab Dark").first.click()
    lab.page.wait_for_selector("body[data-jp-theme-light='false']", state="attached")
    lab.page.wait_for_function(
        "([views, light]) => getComputedStyle(document.querySelector(views)).color !== light", arg=[VIEWS, light[0]]
    )
    dark = lab.view(0).evaluate(ink)
    brightness = [
        [sum(int(part) for part in text.split("(")[1].strip(")").split(",")[:3]) for text in pair]
        for pair in (light, dark)
    ]
    assert brightness[0][0] < brightness[0][1]
    assert brightness[1][0] > brightness[1][1]


SLOW_PHOTO = """async ({code, colours}) => {
  const photo = (colour) => {
    const canvas = Object.assign(document.createElement("canvas"), {width: 8, height: 8});
    const context = canvas.getContext("2d");
    context.fillStyle = colour;
    context.fillRect(0, 0, 8, 8);
    return {source: canvas.toDataURL(), size: [8, 8], original: [8, 8], name: colour};
  };
  const decode = HTMLImageElement.prototype.decode, waiting = [];
  const slow = photo(colours[1]).source;
  HTMLImageElement.prototype.decode = function () {
    return this.src === slow ? new Promise((resolve) => waiting.push(resolve)) : decode.call(this);
  };
  const answer = (number) => ({number, title: "", caption: "", sides: [{}]});
  const method = {name: "gam", title: "GAM", kind: "block", most: 1, usual: 1};
  const state = {
    menus: {pair: false, rows: ["0", "1"], methods: [method], fixed: false, more_rows: 0},
    asked: {number: 0, row: 0, method: "gam", n: 1, refine: false, point: null},
    photos: [photo(colours[0])], shown: answer(0), failed: {}, opacity: 0.7, threshold: 0,
  };
  const heard = {}, turn = () => new Promise((resolve) => setTimeout(resolve, 50));
  const model = {get: (name) => state[name], on: (name, act) => { heard[name] = act; }};
  const {default: view} = await import(`data:text/javascript;base64,${code}`);
  view.render({model, el: document.body});
  await turn();
  for (const [number, colour] of colours.entries()) {
    if (!number) continue;
    Object.assign(state, {photos: [photo(colour)], shown: answer(number)});
    heard["change:shown"]();
    await turn();
  }
  waiting.forEach((resolve) => resolve());
  await turn();
  return document.querySelector("figcaption strong").textContent;
}"""


@pytest.mark.parametrize("colours", [["red", "lime", "blue"], ["red", "lime", "red"]])
def test_a_slow_photo_does_not_replace_a_later_one(browser: Any, colours: list[str]) -> None:
    """The second photo is decoded after the third was asked for, which may be the first again."""
    page = browser.new_page()
    code = base64.b64encode(VIEW_PAGE.read_bytes()).decode()
    assert page.evaluate(SLOW_PHOTO, {"code": code, "colours": colours}) == colours[-1]
    page.close()
