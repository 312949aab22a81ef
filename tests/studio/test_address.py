"""Where the studio listens: IPv4, IPv6 and names, and what is said about an address that cannot be had."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import httpx
import pytest
from studio_kit import small_lens

from gamlens import GamlensError, GamlensWarning
from gamlens.studio import launch
from gamlens.studio.address import PORTS, Address, free_address


@pytest.fixture
def with_ipv6() -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("this machine has no IPv6")


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:7/"),
        ("localhost", "http://localhost:7/"),
        ("0.0.0.0", "http://localhost:7/"),
        ("[::1]", "http://[::1]:7/"),
        ("[::]", "http://[::1]:7/"),
    ],
)
def test_urls(host: str, url: str) -> None:
    assert Address(host, 7).url == url


@pytest.mark.slow
@pytest.mark.usefixtures("with_ipv6")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:gradio", "ignore:Anyone who can reach this machine")
@pytest.mark.parametrize(("host", "local"), [("::", False), ("::1", True), ("localhost", True)])
def test_the_page_opens(host: str, local: bool) -> None:
    told = nullcontext() if local else pytest.warns(GamlensWarning, match="Anyone who can reach this machine at ::")
    with told:
        studio = launch({"small": small_lens()}, host=host)
    with studio:
        assert studio.url.startswith("http://localhost:" if host == "localhost" else "http://[::1]:")
        assert httpx.get(studio.url, timeout=60).status_code == 200
        assert studio.actions.models.any_name == local


@pytest.mark.usefixtures("with_ipv6")
def test_a_port_that_is_taken_on_this_host_is_seen() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        port = server.getsockname()[1]
        with pytest.raises(GamlensError, match=rf"Cannot listen on '::1': the port {port} is taken"):
            free_address("::1", port)


def test_a_port_that_is_taken(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GamlensError, match=rf"Cannot listen on '127.0.0.1': the port {taken} is taken"):
        launch({"small": small_lens()}, port=taken)
    monkeypatch.setattr("gamlens.studio.address.PORTS", range(taken, taken + 1))
    with pytest.raises(GamlensError, match=rf"the ports {taken} to {taken} are all taken"):
        free_address("127.0.0.1")
    assert PORTS[0] == 7860


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:gradio")
def test_a_port_that_another_studio_takes_meanwhile(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that start at once find the same free port; the later one takes the next."""
    found = [Address("127.0.0.1", taken)]
    monkeypatch.setattr(
        "gamlens.studio.server.free_address", lambda host, port=None: found.pop() if found else free_address(host, port)
    )
    with launch({"small": small_lens()}) as studio:
        assert studio.url != f"http://127.0.0.1:{taken}/"
        assert httpx.get(studio.url, timeout=60).status_code == 200


def test_a_machine_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def no_ipv6(family: int = -1, *args: Any, **options: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family, *args, **options)

    monkeypatch.setattr("gamlens.studio.address.socket.socket", no_ipv6)
    for host in ("::", "::1"):
        with pytest.raises(GamlensError, match=r"this machine has no IPv6.*--host 127\.0\.0\.1"):
            free_address(host)


@pytest.mark.parametrize(
    ("host", "said"), [("192.0.2.1", "no address of this machine"), ("no host", "there is no such host")]
)
def test_a_host_of_another_machine(host: str, said: str) -> None:
    with pytest.raises(GamlensError, match=said):
        free_address(host)
