"""Who may ask the studio for what: other sites, strangers, and visitors who send or keep too much."""

from __future__ import annotations

import asyncio
import io
import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from PIL import Image
from studio_kit import noise, small_lens
from visitor import Visitor, values

from gamlens import GamlensError, GamlensWarning
from gamlens.studio import Studio, downloads, launch, request_body, security, server, signed_drawing, uploads
from gamlens.studio.access_rules import AccessRules, network_of
from gamlens.studio.actions import Actions
from gamlens.studio.controls import Controls
from gamlens.studio.login_throttle import FREE_TRIES, LONGEST_WAIT, TRIES_PER_MINUTE, LoginThrottle
from gamlens.studio.uploads import MOST_BYTES

VALUES = values(Controls())
served = pytest.mark.slow


@pytest.fixture(scope="module")
def tiny() -> Iterator[Studio]:
    with launch({"small": small_lens()}) as running:
        yield running


@pytest.fixture(scope="module")
def guarded() -> Iterator[Studio]:
    with launch({"small": small_lens()}, auth=("ada", "secret")) as running:
        yield running


@pytest.fixture
def http(tiny: Studio) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=tiny.url, timeout=60) as client:
        yield client


def port_of(studio: Studio) -> int:
    return httpx.URL(studio.url).port or 80


def send_raw(studio: Studio, head: str, body: bytes = b"") -> bytes:
    """Send a request as it is and return the first part of the answer."""
    with socket.create_connection(("127.0.0.1", port_of(studio)), timeout=60) as line:
        line.sendall(head.replace("\n", "\r\n").encode() + body)
        return line.recv(4096)


FETCH = {"sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}
OPEN = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
FRAME = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}


@pytest.mark.parametrize(
    ("method", "path", "headers", "foreign"),
    [
        ("POST", "/gradio_api/upload", {"origin": "https://example.org"}, True),
        ("POST", "/gradio_api/upload", {"origin": "null"}, True),
        ("POST", "/gradio_api/upload", {"origin": "http://localhost:3000"}, True),
        ("POST", "/gradio_api/upload", {"origin": "http://localhost:7860"}, False),
        ("POST", "/gradio_api/upload", {}, False),
        ("POST", "/gradio_api/upload", {"sec-fetch-site": "cross-site", **FETCH}, True),
        ("POST", "/gradio_api/upload", {"sec-fetch-site": "same-site", **FETCH}, True),
        ("POST", "/gradio_api/upload", {"sec-fetch-site": "same-origin", "origin": "https://proxy", **FETCH}, False),
        ("GET", "/", {"sec-fetch-site": "cross-site", **OPEN}, False),
        ("GET", "/", {"sec-fetch-site": "none", **OPEN}, False),
        ("GET", "/", {"sec-fetch-site": "cross-site", **FRAME}, True),
        ("POST", "/", {"sec-fetch-site": "cross-site", **OPEN}, True),
        ("GET", "/logout", {"sec-fetch-site": "cross-site", **OPEN}, True),
    ],
)
def test_requests_of_other_sites(method: str, path: str, headers: dict[str, str], foreign: bool) -> None:
    rules, asked = AccessRules("127.0.0.1"), {"host": "localhost:7860", **headers}
    assert rules.is_of_another_site(method, path, asked) is foreign


def test_a_proxy_and_a_notebook_are_no_other_site() -> None:
    proxied = AccessRules("127.0.0.1", public_url="https://example.org/studio")
    headers = {"host": "127.0.0.1:7860", "origin": "https://example.org"}
    assert not proxied.is_of_another_site("POST", "/gradio_api/upload", headers)
    assert proxied.is_known_host("example.org")
    assert not proxied.is_known_host("evil.org")
    notebook = AccessRules("127.0.0.1", notebook=True)
    assert not notebook.is_of_another_site("GET", "/", {"sec-fetch-site": "cross-site", **FRAME})
    assert "http://localhost:*" in notebook.frame_ancestors
    assert AccessRules("127.0.0.1").frame_ancestors == "'none'"


@pytest.mark.parametrize(
    ("host", "login", "asked", "known"),
    [
        ("127.0.0.1", False, "localhost:7860", True),
        ("127.0.0.1", False, "[::1]", True),
        ("127.0.0.1", False, "[::1]:7860", True),
        ("127.0.0.1", False, "192.168.1.5:7860", False),
        ("127.0.0.1", True, "evil.org:7860", False),
        ("127.0.0.1", False, "127.0.0.1.evil.org", False),
        ("127.0.0.1", False, "", False),
        ("127.0.0.1", False, "[", False),
        ("0.0.0.0", False, "192.168.1.5:7860", True),
        ("0.0.0.0", False, f"{socket.gethostname()}:7860", True),
        ("0.0.0.0", False, "evil.org:7860", False),
        ("0.0.0.0", True, "lab.example.org", True),
        ("lab.example.org", False, "lab.example.org:7860", True),
    ],
)
def test_names_of_the_studio(host: str, login: bool, asked: str, known: bool) -> None:
    assert AccessRules(host, login=login).is_known_host(asked) is known


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "lab.example.org"])
def test_an_open_studio_is_warned_of(host: str, recwarn: pytest.WarningsRecorder) -> None:
    with pytest.warns(GamlensWarning, match=f"Anyone who can reach this machine at {host}"):
        server._access_rules(host, None, None)
    recwarn.clear()
    server._access_rules(host, ("ada", "secret"), None)
    server._access_rules("127.0.0.1", None, None)
    assert not recwarn
    with pytest.warns(GamlensWarning, match="at example.org can use"):
        server._access_rules("127.0.0.1", None, "https://example.org/studio")
    with pytest.raises(GamlensError, match="public_url is the address"):
        server._access_rules("127.0.0.1", None, "example.org/studio")


def test_guessing_passwords_is_slowed() -> None:
    now = [0.0]
    throttle = LoginThrottle(lambda: now[0])
    assert [throttle.begin("a").wait for _ in range(FREE_TRIES)] == [0.0] * FREE_TRIES
    waits = []
    for _ in range(9):
        waits.append(throttle.begin("a").wait)
        now[0] += waits[-1]
        assert throttle.begin("a").wait == 0
    assert waits == [1, 2, 4, 8, 16, 32, LONGEST_WAIT, LONGEST_WAIT, LONGEST_WAIT]
    assert throttle.begin("b").wait == 0
    now[0] += LONGEST_WAIT
    throttle.begin("a")
    throttle.succeeded("a")
    assert throttle.begin("a").wait == 0


def test_guessing_from_many_addresses_is_slowed() -> None:
    throttle = LoginThrottle(lambda: 100.0)
    throttle.begin("friend")
    throttle.succeeded("friend")
    tries = [throttle.begin(f"10.0.0.{number}") for number in range(TRIES_PER_MINUTE + 40)]
    assert max(attempt.delay for attempt in tries[: TRIES_PER_MINUTE + 1]) == 0
    assert [attempt.delay for attempt in tries[TRIES_PER_MINUTE + 1 :][:4]] == [0, 0.25, 0.5, 0.75]
    assert tries[-1].wait > 0
    assert throttle.begin("friend") == (0, 0)
    assert network_of("2001:db8::1") == network_of("2001:db8::2") != network_of("2001:db8:1::1")


@served
def test_another_site_cannot_upload_or_frame(tiny: Studio, http: httpx.Client) -> None:
    photo = {"files": ("a.png", b"0")}
    for headers in ({"origin": "https://example.org"}, {"sec-fetch-site": "cross-site"}, {"host": "evil.org"}):
        for path in ("gradio_api/upload", "gradio_api/queue/join", "gradio_api/cancel"):
            assert http.post(path, files=photo, headers=headers).status_code == 403
        for path in ("config", "gradio_api/queue/data?session_hash=a", "gradio_api/heartbeat/a", "theme.css"):
            assert http.get(path, headers=headers).status_code == 403
    assert not [path for path in tiny.folder.rglob("*.png") if path.parent.name != "examples"]
    page = http.get("/", headers={"sec-fetch-site": "cross-site", **OPEN})
    assert page.status_code == 200
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    answer = send_raw(tiny, "GET /ws HTTP/1.1\nHost: localhost\nUpgrade: websocket\nConnection: Upgrade\n\n")
    assert answer.split(b" ")[1] in (b"403", b"400")


def routes_of(router: Any) -> Iterator[tuple[str, str]]:
    """The paths and methods of a router and of those that it includes."""
    for route in router.routes:
        if hasattr(route, "original_router"):
            yield from routes_of(route.original_router)
        elif getattr(route, "routes", None):
            yield from ((route.path + path, method) for path, method in routes_of(route))
        else:
            yield from ((route.path, method) for method in route.methods or ("GET",))


@served
def test_behind_a_reverse_proxy() -> None:
    address = "https://example.org/studio"
    with launch({"small": small_lens()}, public_url=address, auth=("ada", "secret")) as proxied:
        assert not proxied.actions.models.any_name
        with httpx.Client(base_url=proxied.url, headers={"host": "example.org"}, timeout=60) as http:
            assert f'"root":"{address}"' in http.get("/").text
            login = {"username": "ada", "password": "secret"}
            assert http.post("login", data=login, headers={"origin": "https://evil.org"}).status_code == 403
            assert http.post("login", data=login, headers={"origin": "https://example.org"}).status_code == 200
            assert http.get("config").status_code == 200


@served
def test_every_address_needs_a_login(guarded: Studio) -> None:
    """All routes of gradio, so that a new version cannot add an open one unseen."""
    opened, asked = set(), {(re.sub(r"\{[^}]*\}", "x", path), method) for path, method in routes_of(guarded.page.app)}
    assert {("/gradio_api/cancel", "POST"), ("/gradio_api/heartbeat/x", "GET"), ("/config", "GET")} <= asked
    with httpx.Client(base_url=guarded.url, timeout=60) as http:
        for path, method in asked:
            with http.stream(method, path) as answer:
                if answer.status_code != 401:
                    opened.add(path)
    static = {"/svelte/x", "/static/x", "/assets/x", "/favicon.ico", "/theme.css", "/robots.txt", "/manifest.json"}
    assert opened == {"/", "/login", "/login/", *static}


@served
def test_a_body_is_refused_before_it_is_read(tiny: Studio, guarded: Studio) -> None:
    """The answer comes although none of the body is sent."""
    for path in ("/gradio_api/upload", "/gradio_api/queue/join", "/gradio_api/cancel", "/gradio_api/reset"):
        head = f"POST {path} HTTP/1.1\nHost: localhost\nContent-Length: 1000000\nContent-Type: application/json\n\n"
        assert b" 401 " in send_raw(guarded, head)
    assert b" 413 " in send_raw(guarded, "POST /login HTTP/1.1\nHost: localhost\nContent-Length: 99999999\n\n")
    assert b" 413 " in send_raw(tiny, "POST /gradio_api/cancel HTTP/1.1\nHost: localhost\nContent-Length: 9999999\n\n")


@served
@pytest.mark.parametrize("path", ["gradio_api/queue/join", "gradio_api/cancel", "gradio_api/upload"])
def test_a_body_without_length_is_counted(http: httpx.Client, path: str) -> None:
    parts = (b"0" * 2**20 for _ in range(2 + MOST_BYTES // 2**20 if path.endswith("upload") else 2))
    kind = {"content-type": "multipart/form-data; boundary=b" if path.endswith("upload") else "application/json"}
    head = b'--b\r\nContent-Disposition: form-data; name="files"; filename="big.bin"\r\n\r\n'
    answer = http.post(path, content=(part for part in (head, *parts)), headers=kind)
    assert answer.status_code == 413


@served
def test_a_slow_body_is_refused(tiny: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "SECONDS_BETWEEN_PARTS", 0.1)
    for path in ("/gradio_api/upload", "/gradio_api/queue/join", "/gradio_api/cancel"):
        head = f"POST {path} HTTP/1.1\nHost: localhost\nContent-Length: 99\nContent-Type: application/json\n"
        kind = "Content-Type: multipart/form-data; boundary=b"
        head = head.replace("Content-Type: application/json", kind) if path.endswith("upload") else head
        assert b" 408 " in send_raw(tiny, f"{head}\n", b"-")


@served
def test_failed_logins_are_slowed(guarded: Studio) -> None:
    with httpx.Client(base_url=guarded.url, timeout=60) as http:
        assert http.post("login", data={"username": "ada", "password": "secret"}).status_code == 200
        wrong = {"username": "ada", "password": "wrong"}
        found = [http.post("login", data=wrong) for _ in range(FREE_TRIES + 1)]
        assert [answer.status_code for answer in found] == [*([400] * FREE_TRIES), 429]
        assert found[-1].headers["retry-after"] in ("1", "2")
        assert http.get("/").status_code == 200


@served
def test_files_of_others_are_not_served(tiny: Studio, http: httpx.Client, tmp_path: Path) -> None:
    """gradio serves .gradio of the working folder, and answers ranges with the headers of the request."""
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    link = tiny.folder / "link.txt"
    link.symlink_to(secret)
    here = Path(uploads.__file__)
    paths = [link, here, secret, Path("/etc/passwd"), tiny.folder, tiny.folder.parent, f"{tiny.folder}/x/../../x"]
    for path in [*paths, ".gradio/cached_examples/a.txt", "C:/a", "http://127.0.0.1:1/x", "file:///etc/passwd", "a\0b"]:
        assert http.get(f"gradio_api/file={str(path).replace(chr(0), '%00')}").status_code == 403
    link.unlink()
    photo = next(iter(tiny.folder.glob("examples/*.jpg")))
    answer = http.get(f"gradio_api/file={photo}", headers={"range": "bytes=0-9", "x-mine": "1"})
    assert answer.status_code == 200
    assert "x-mine" not in answer.headers


@served
def test_visitors_who_upload_the_same_photo_do_not_share_a_file(tiny: Studio, tmp_path: Path) -> None:
    """The first visitor leaves between the second one's upload and its use."""
    file, first, second = noise(tmp_path / "same.png", seed=5), Visitor(tiny, "first"), Visitor(tiny, "second")
    first.call("photo", [first.upload(file), *VALUES])
    given = second.upload(file)
    tiny.actions.sessions.end("first")
    stage, *_ = second.call("photo", [given, *VALUES])
    assert "Why thing" in stage
    tiny.actions.sessions.end("second")
    assert not list(tiny.folder.rglob("same.png"))


@served
def test_uploads_that_wait_are_limited_and_deleted(
    tiny: Studio, http: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tiny.actions.sessions.files
    files.sweep(0)
    monkeypatch.setattr(uploads, "WAITING_PER_VISITOR", (2, 10**6))
    for status in (200, 200, 429):
        answer = http.post("gradio_api/upload", files={"files": ("wait.png", b"0")})
        assert answer.status_code == status
    assert len(list(tiny.folder.rglob("wait.png"))) == 2
    files.sweep()
    assert len(list(tiny.folder.rglob("wait.png"))) == 2
    files.sweep(0)
    assert not list(tiny.folder.rglob("wait.png"))
    answer = http.post("gradio_api/upload", files={"files": ("wait.png", b"0" * 2 * 10**6)})
    assert answer.status_code == 429
    assert http.post("gradio_api/upload", files={"other": ("wait.png", b"0")}).status_code == 400
    assert http.post("gradio_api/upload", content=b"0").status_code == 400
    assert {path.name for path in tiny.folder.iterdir()} <= {"examples", "gamlens-studio.lock"}


@served
def test_an_upload_that_breaks_off_leaves_nothing(tiny: Studio) -> None:
    head = "POST /gradio_api/upload HTTP/1.1\nHost: localhost\nContent-Length: 5000000\n"
    part = b'--b\r\nContent-Disposition: form-data; name="files"; filename="half.png"\r\n\r\n' + b"0" * 2 * 2**20
    with socket.create_connection(("127.0.0.1", port_of(tiny)), timeout=60) as line:
        line.sendall(f"{head}Content-Type: multipart/form-data; boundary=b\n\n".replace("\n", "\r\n").encode() + part)
        time.sleep(0.2)
    end = time.monotonic() + 60
    while time.monotonic() < end and any(path.name != "examples" for path in tiny.folder.iterdir() if path.is_dir()):
        time.sleep(0.02)
    assert {path.name for path in tiny.folder.iterdir()} <= {"examples", "gamlens-studio.lock"}


@served
@pytest.mark.parametrize(
    ("name", "kept"),
    [("../../a.png", "a.png"), ("..", "photo"), ("C:\\b.png", "b.png"), ('c"\t; x=".png', "c; x=.png"), ("", "file")],
)
def test_names_of_uploads_are_harmless(tiny: Studio, http: httpx.Client, name: str, kept: str) -> None:
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    head = f'--b\r\nContent-Disposition: form-data; name="files"; filename="{quoted}"\r\n\r\n0\r\n--b--\r\n'
    kind = {"content-type": "multipart/form-data; boundary=b"}
    (path,) = http.post("gradio_api/upload", content=head.encode(), headers=kind).json()
    assert (Path(path).name, Path(path).parent.parent) == (kept, tiny.folder)
    assert Path(path).stat().st_mode & 0o777 == 0o600
    served = http.get(f"gradio_api/file={path}")
    assert (served.status_code, served.text) == (200, "0")
    tiny.actions.sessions.files.sweep(0)


@served
def test_events_of_the_queue_cannot_pass_by_it(tiny: Studio, http: httpx.Client) -> None:
    """The queue lets few events that take much memory run at once."""
    for number in [number for number, fn in tiny.page.fns.items() if fn.name in ("photo", "download", "redraw")]:
        body = {"data": [None, *VALUES], "fn_index": number, "session_hash": "x"}
        assert http.post("gradio_api/run/predict", json=body).status_code in (401, 403, 404)
    assert http.post("gradio_api/run/predict", json={**body, "session_hash": "x" * 65}).status_code == 400


@served
def test_unread_answers_are_limited(tiny: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers hold pictures: a visitor who never reads them would fill the memory."""
    visitor = Visitor(tiny, "never reads")
    (number, *_) = [number for number, fn in tiny.page.fns.items() if fn.name == "redraw"]
    body = {"data": VALUES, "fn_index": number, "session_hash": visitor.session}
    monkeypatch.setattr(security, "MOST_UNREAD", 4)
    end, codes = time.monotonic() + 60, set[int]()
    while 429 not in codes and time.monotonic() < end:
        codes.add(visitor.http.post("gradio_api/queue/join", json=body).status_code)
    assert codes == {200, 429}
    for wrong in ({**body, "session_hash": "x" * 65}, {**body, "session_hash": ["x"]}, [], "[" * 100_000):
        content = wrong if isinstance(wrong, str) else json.dumps(wrong)
        kind = {"content-type": "application/json"}
        assert visitor.http.post("gradio_api/queue/join", content=content, headers=kind).status_code == 400


def test_the_oldest_unread_answers_are_dropped() -> None:
    waiting = {name: asyncio.Queue[int]() for name in ("old", "new")}
    for queue, count in zip(waiting.values(), (security.MOST_UNREAD_IN_ALL, 20), strict=True):
        for number in range(count):
            queue.put_nowait(number)
    app = SimpleNamespace(
        get_blocks=lambda: SimpleNamespace(_queue=SimpleNamespace(pending_messages_per_session=waiting))
    )
    assert security._too_many_unread(app, b'{"session_hash": "new"}') is None
    assert [queue.qsize() for queue in waiting.values()] == [security.MOST_UNREAD_IN_ALL - 20, 20]


@served
def test_gradio_keeps_few_sessions(tiny: Studio) -> None:
    """gradio keeps the pictures of each session that it knows; by default of 10,000."""
    assert tiny.page.app.state_holder.capacity == 4 * tiny.actions.sessions.most


def test_a_large_photo_is_made_smaller_before_it_is_drawn(
    actions: Actions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawing at the full size of 40 million pixels took 1 GB per visitor."""
    sizes = []

    def draw(result: Any, controls: Controls) -> Any:
        sizes.append(result.full(0).shape)
        return signed_drawing.draw_map(result, controls)

    monkeypatch.setattr(downloads, "LONGEST_DOWNLOAD", 64)
    monkeypatch.setattr(downloads, "draw_map", draw)
    actions.set_photos("one", {"photo": noise(tmp_path / "large.png", seed=1, size=(640, 320))}, Controls())
    made = Image.open(io.BytesIO(actions.download("one", "class", "picture", Controls()).data))
    assert made.size == (64, 32)
    assert sizes == [(32, 64)]


def test_no_websocket_is_accepted(tmp_path: Path) -> None:
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def app(*_: Any) -> None:
        pytest.fail("it was passed on")

    guard = security.SecurityMiddleware(app, AccessRules("127.0.0.1"), uploads.UploadedFiles(tmp_path))
    scope = {"type": "websocket", "path": "/ws", "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1)}
    with ThreadPoolExecutor(1) as pool:  # this thread has an event loop already if a browser was driven in it
        pool.submit(asyncio.run, guard(scope, receive, send)).result()
    assert sent == [{"type": "websocket.close", "code": 1008}]
