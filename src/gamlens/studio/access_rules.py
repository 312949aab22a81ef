"""Which requests come from the studio's own page: the rules for the Host, Origin and Sec-Fetch headers."""

import contextlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

# Where a notebook's page can come from: Jupyter on this machine, VS Code, Colab.
NOTEBOOK_PAGES = (
    "http://localhost:* http://127.0.0.1:* vscode-webview: vscode-file: "
    "https://*.googleusercontent.com https://colab.research.google.com"
)


def is_loopback(host: str) -> bool:
    """Whether `host` can only be reached from this machine."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ip_address(host).is_loopback
    return False


def network_of(address: str) -> str:
    """What counts as one visitor's address: an IPv4 address, or the /64 network of an IPv6 address.

    >>> network_of("2001:db8::1") == network_of("2001:db8::ffff")
    True
    """
    with contextlib.suppress(ValueError):
        found = ip_address(address)
        if isinstance(found, IPv6Address) and found.ipv4_mapped is None:
            return str(IPv6Address(int(found) >> 64 << 64))
    return address


@dataclass(frozen=True)
class AccessRules:
    """Decides which requests a browser may have sent for another site.

    Attributes:
        host: The address that the studio listens on.
        login: Whether visitors log in.
        public_url: The address of the page if a reverse proxy serves it; "" otherwise.
        notebook: Whether a notebook shows the page in a frame.
    """

    host: str
    login: bool = False
    public_url: str = ""
    notebook: bool = False

    @property
    def reached_at(self) -> str:
        """The host by which visitors reach the studio, as far as it is known."""
        return self.host if not is_loopback(self.host) else urlsplit(self.public_url).hostname or self.host

    @property
    def only_this_machine(self) -> bool:
        return is_loopback(self.reached_at)

    @cached_property
    def public_place(self) -> str:
        """The host and port of `public_url`, as browsers write them."""
        return _place(self.public_url)

    @cached_property
    def own_names(self) -> frozenset[str]:
        """The names of this machine. Finding them may take a while."""
        names = {self.host, socket.gethostname(), socket.getfqdn(), urlsplit(self.public_url).hostname or ""}
        return frozenset(name.strip("[]").lower() for name in names) - {""}

    @property
    def frame_ancestors(self) -> str:
        """Which pages may show the studio in a frame, as in a Content-Security-Policy."""
        return f"'self' {NOTEBOOK_PAGES}" if self.notebook else "'none'"

    def is_known_host(self, asked: str) -> bool:
        """Whether a Host header names this studio.

        A site may let its own name resolve to this machine (DNS rebinding). The browser then takes the studio for a
        part of that site, but the Host header holds the site's name, never an IP address. Where visitors log in, any
        name is allowed unless only this machine is served, because the browser sends the cookie of the login only to
        the name under which the visitor logged in.
        """
        try:
            name = (urlsplit(f"//{asked}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if is_loopback(name) or (name and name == urlsplit(self.public_url).hostname):
            return True
        if is_loopback(self.host):
            return False
        if self.login or name in self.own_names:
            return True
        with contextlib.suppress(ValueError):
            return bool(ip_address(name))
        return False

    def is_of_another_site(self, method: str, path: str, headers: Mapping[str, str]) -> bool:
        """Whether a page of another origin caused this request. Opening the page itself by a link is no such request.

        Browsers send Sec-Fetch-Site to secure and loopback addresses, and scripts cannot change it; elsewhere the
        Origin header must name the host that was asked.
        """
        site = headers.get("sec-fetch-site")
        if site is None:
            origin = headers.get("origin")
            if origin is None:
                return False
            places = {headers.get("host", "").lower(), self.public_place} - {""}
            return _place(origin) not in places
        if site in ("same-origin", "none"):
            return False
        targets = ("document", "iframe") if self.notebook else ("document",)
        opens = method in ("GET", "HEAD") and path == "/" and headers.get("sec-fetch-mode") == "navigate"
        return not (opens and headers.get("sec-fetch-dest") in targets)


def _place(url: str) -> str:
    """The host and port of a URL; "" for what is no URL, such as the Origin "null"."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        if parts.hostname:
            return parts.netloc.lower()
    return ""
