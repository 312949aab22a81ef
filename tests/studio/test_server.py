"""The running server: what it refuses to serve, who may come in, and many visitors at once."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from studio_kit import noise, small_lens
from typer.testing import CliRunner
from visitor import Visitor, values

from gamlens import GamlensError, Lens
from gamlens.cli import app
from gamlens.studio import Studio, launch
from gamlens.studio.actions import Actions
from gamlens.studio.controls import Controls
from gamlens.studio.model_cache import ModelCache
from gamlens.studio.server import SERVER_THREADS
from gamlens.studio.session import SessionId
from gamlens.studio.uploads import MOST_BYTES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::gamlens.GamlensWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:gradio"),
]
VISITORS, REQUESTS = 8, 200
GROWTH = 40 * 2**20
USUAL = Controls()
VALUES = values(USUAL)


@pytest.fixture(scope="module")
def tiny() -> Iterator[Studio]:
    """A studio on a tiny lens of the user's own, started from Python."""
    with launch({"small": small_lens()}) as running:
        yield running


def test_from_python(tiny: Studio, tmp_path: Path) -> None:
    """A lens of the user's own opens without examples of another world; its classes are offered."""
    assert tiny.url.startswith("http://127.0.0.1:")
    visitor = Visitor(tiny, "python")
    stage, _, block, _, _, bars, *_ = visitor.call(
        "photo", [visitor.upload(noise(tmp_path / "a.png", seed=1)), *VALUES]
    )
    assert "Why thing" in stage
    assert [name for name, _ in block["choices"]] == ["mean of n", "layer3", "layer2", "layer1"]
    assert bars.count("<li>") == 5


def test_another_model_from_the_page(tiny: Studio, tmp_path: Path) -> None:
    """A name that is not known leaves the visit with its model, and says what there is."""
    visitor = Visitor(tiny, "chooser")
    visitor.call("photo", [visitor.upload(noise(tmp_path / "b.png", seed=2)), *VALUES])

    def use(name: str) -> list[Any]:
        assert visitor.call("choose_model", [name])[1] == "small"
        return visitor.call("use_model", [*VALUES, *VALUES])

    assert "There is no model &#39;efficientnet_lite9&#39;: did you mean" in use("efficientnet_lite9")[0]
    assert "given at the start" in use("/tmp/mine.py:build")[0]
    notice, used, stage, _, block, *_ = use("efficientnet_lite0")
    assert (notice, used) == ("", "efficientnet_lite0")
    assert "says efficientnet_lite0" in stage
    assert "bn2" in [name for name, _ in block["choices"]]


def test_visitors_who_wait_for_a_model_take_no_place_of_others(
    tiny: Studio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More visitors wait than the server has threads, and another one's photo is explained all the same."""
    loading: Future[Lens] = Future()
    real = tiny.actions.models.load
    monkeypatch.setattr(
        tiny.actions.models, "load", lambda name, **options: loading if name == "slow" else real(name, **options)
    )
    with ThreadPoolExecutor(SERVER_THREADS + 1) as pool:
        waiting = [Visitor(tiny, f"waits {number}") for number in range(SERVER_THREADS + 1)]
        for visitor in waiting:
            assert "is being loaded" in visitor.call("choose_model", ["slow"])[0]
        answers = [pool.submit(visitor.call, "use_model", [*VALUES, *VALUES]) for visitor in waiting]
        other = Visitor(tiny, "goes on")
        stage, *_ = other.call("photo", [other.upload(noise(tmp_path / "on.png", seed=4)), *VALUES])
        assert "Why thing" in stage
        assert not any(answer.done() for answer in answers)
        loading.set_exception(GamlensError("It was not to be."))
        assert all("It was not to be." in answer.result(60)[0] for answer in answers)
    for visitor in waiting:
        tiny.actions.sessions.end(visitor.session)


def test_an_event_knows_when_it_arrived(tiny: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that one that waited in the queue until its page was closed is told from one of a page that came back."""
    sessions, seen = tiny.actions.sessions, list[SessionId]()
    real = sessions.get
    monkeypatch.setattr(sessions, "get", lambda session_id: seen.append(session_id) or real(session_id))
    visitor, before = Visitor(tiny, "leaves"), time.monotonic()
    visitor.call("redraw", VALUES)
    sessions.end(visitor.session)
    (moment,) = [one.arrived for one in seen]
    assert before < moment < time.monotonic()
    visitor.call("redraw", VALUES)
    assert sessions.find(visitor.session) is None


def test_serves_no_file_but_its_own(tiny: Studio, tmp_path: Path) -> None:
    here = Path(__file__).resolve()
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    with httpx.Client(base_url=tiny.url, timeout=60) as http:
        for path in (here, secret, Path("/etc/passwd"), Path.cwd() / "pyproject.toml"):
            for route in ("gradio_api/file=", "file="):
                assert http.get(f"{route}{path}").status_code in (403, 404)
        assert http.get(f"gradio_api/file={tiny.folder}/../../../etc/passwd").status_code in (403, 404)
        for address in ("https://example.org/x.png", "http://127.0.0.1:1/x"):
            answer = http.get(f"gradio_api/file={address}")
            assert (answer.status_code, answer.text) == (
                403,
                "Refused: this studio answers only requests of its own page.",
            )
        for page in ("docs", "openapi.json", "redoc"):
            assert "swagger" not in http.get(page).text.lower()


def test_page_names_no_other_address(tiny: Studio) -> None:
    with httpx.Client(base_url=tiny.url, timeout=60) as http:
        page = http.get("/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "http" not in policy
    assert "googleapis" not in page.text
    assert "gstatic" not in page.text


def test_another_site_is_turned_away(tiny: Studio) -> None:
    """A page of another origin, open in the same browser, may not ask the studio for anything."""
    with httpx.Client(base_url=tiny.url, timeout=60) as http:
        answer = http.get("config", headers={"origin": "https://example.org"})
        assert answer.headers.get("access-control-allow-origin") not in ("*", "https://example.org")


def test_another_name_for_this_machine_is_turned_away(tiny: Studio) -> None:
    with httpx.Client(base_url=tiny.url, timeout=60) as http:
        port = tiny.url.rstrip("/").rsplit(":", 1)[1]
        for name, status in (("example.org", 403), (f"rebound.example:{port}", 403), (f"localhost:{port}", 200)):
            assert http.get("config", headers={"host": name}).status_code == status


def test_upload_has_a_limit(tiny: Studio, tmp_path: Path) -> None:
    with httpx.Client(base_url=tiny.url, timeout=60) as http:
        answer = http.post("gradio_api/upload", files={"files": ("big.bin", b"0" * (MOST_BYTES + 2**20))})
    assert answer.status_code == 413
    assert not list(tiny.folder.glob("**/big.bin"))


def test_a_path_that_was_not_uploaded_is_refused(tiny: Studio, tmp_path: Path) -> None:
    file = noise(Path.home() / ".gamlens-test.png", seed=3)
    try:
        visitor = Visitor(tiny, "thief")
        with pytest.raises(AssertionError):
            visitor.call("photo", [{"path": str(file), "meta": {"_type": "gradio.FileData"}}, *VALUES])
        assert file.exists()
    finally:
        file.unlink()


def test_auth() -> None:
    with launch({"small": small_lens()}, auth=("ada", "secret")) as guarded:
        assert not guarded.actions.models.any_name
        with httpx.Client(base_url=guarded.url, timeout=60) as http:
            assert http.get("config").status_code == 401
            assert http.post("gradio_api/upload", files={"files": ("a.png", b"0")}).status_code == 401
            assert http.post("login", data={"username": "ada", "password": "wrong"}).status_code == 400
            assert http.post("login", data={"username": "ada", "password": "secret"}).status_code == 200
            assert http.get("config").status_code == 200


def test_told_to_end_it_cleans_up(tmp_path: Path) -> None:
    """SIGTERM, as a service manager sends it, ends the wait and deletes what visitors gave."""
    before = signal.getsignal(signal.SIGTERM)
    running = launch({"small": small_lens()})
    visitor = Visitor(running, "last")
    given = Path(visitor.upload(noise(tmp_path / "last.png", seed=77))["path"])
    visitor.call("photo", [{"path": str(given), "meta": {"_type": "gradio.FileData"}}, *VALUES])
    assert given.exists()
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    running.wait()
    assert not given.exists()
    assert running.ended.is_set()
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(httpx.ConnectError):
        httpx.get(running.url)


def test_start_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GamlensError, match="takes a Lens, a model's name"):
        launch(7)  # type: ignore[arg-type]
    with pytest.raises(GamlensError, match="did you mean 'resnet50'"):
        launch("resnet5")
    with launch({"small": small_lens()}) as first, pytest.raises(GamlensError, match="Cannot listen"):
        launch({"small": small_lens()}, port=int(first.url.rstrip("/").rsplit(":", 1)[1]))
    runner = CliRunner()
    for arguments, message in ((["--auth", "ada"], "USER:PASSWORD"), (["-m", "resnet5"], "did you mean")):
        result = runner.invoke(app, ["studio", "--no-browser", *arguments])
        assert result.exit_code == 1
        assert message in result.stderr
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.delitem(sys.modules, "gamlens.studio.gradio_page", raising=False)
    monkeypatch.delitem(sys.modules, "gamlens.studio.widgets", raising=False)
    with pytest.raises(GamlensError, match=r"pip install 'gamlens\[studio\]'"):
        launch({"small": small_lens()})


def test_load(tiny: Studio, tmp_path: Path) -> None:
    """8 visitors, 200 requests: none fails, each gets its own right picture, memory stays flat, nothing is left."""
    files = [noise(tmp_path / f"photo{number}.png", seed=number) for number in range(VISITORS)]
    alone = Actions(ModelCache({"small": small_lens()}, any_name=False))
    names = ("gam", "grad_cam", "layer_cam", "hires_cam", "xgrad_cam")
    expected = {}
    for number, file in enumerate(files):
        session = f"alone {number}"
        (tmp_path / f"copy{number}").mkdir()
        copy = noise(tmp_path / f"copy{number}" / file.name, seed=number)
        expected[number, "look"] = alone.set_photos(session, {"photo": copy}, USUAL).stage
        for name in names:
            expected[number, name] = alone.redraw(session, "class", Controls(method=name)).stage
    memory: list[int] = []
    done, lock = [0], threading.Lock()

    def visit(number: int) -> list[str]:
        visitor, wrong = Visitor(tiny, f"load {number}"), []
        for turn in range(REQUESTS // VISITORS):
            if turn % 8 == 0:
                (stage, *_), key = visitor.call("photo", [visitor.upload(files[number]), *VALUES]), "look"
            else:
                key = names[turn % len(names)]
                (stage,) = visitor.call("redraw", [VALUES[0], key, *VALUES[2:]])
            if stage != expected[number, key]:
                wrong.append(f"visitor {number}, request {turn} ({key})")
            with lock:
                done[0] += 1
                if done[0] % 50 == 0:
                    gc.collect()
                    memory.append(psutil.Process(os.getpid()).memory_info().rss)
        tiny.actions.sessions.end(f"load {number}")
        return wrong

    with ThreadPoolExecutor(VISITORS) as pool:
        wrong = [text for part in pool.map(visit, range(VISITORS)) for text in part]
    assert wrong == []
    assert done[0] == REQUESTS
    assert memory[-1] - memory[0] < GROWTH, [value // 2**20 for value in memory]
    assert not list(tiny.folder.glob("*/photo*.png"))
