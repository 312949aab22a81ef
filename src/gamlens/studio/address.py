"""The address that the studio listens on: a host by name or number (IPv4 or IPv6) and a free port."""

import errno
import socket
from collections.abc import Iterable
from typing import NamedTuple

from gamlens.errors import GamlensError

PORTS = range(7860, 7960)
LOCALHOST = "127.0.0.1"
ANY_HOST = {"0.0.0.0": "localhost", "::": "[::1]"}  # all addresses of this machine, and how this machine opens them


class Address(NamedTuple):
    """Where the studio listens.

    Attributes:
        host: The host, an IPv6 number in brackets.
        port: The port.
    """

    host: str
    port: int

    @property
    def url(self) -> str:
        """The address that a browser on this machine opens."""
        return f"http://{ANY_HOST.get(self.host.strip('[]'), self.host)}:{self.port}/"


def free_address(host: str, port: int | None = None) -> Address:
    """Check that the studio can listen on a host, and find a free port.

    gradio looks only whether a port is free on 127.0.0.1, and then waits five seconds per port for its server.

    Args:
        host: A name or number; an IPv6 number may be in brackets.
        port: The port; None for the first free one of PORTS.
    """
    bare = host.strip("[]")
    ports: Iterable[int] = PORTS if port is None else (port,)
    taken = f"the port {port} is taken" if port is not None else f"the ports {PORTS[0]} to {PORTS[-1]} are all taken"
    for tried in ports:
        try:
            for family, place in {*_places(bare, tried), *_places(LOCALHOST, tried)}:
                _try(family, place)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            raise GamlensError(f"Cannot listen on {host!r}, port {tried}: {_reason(bare, error)}") from error
        return Address(f"[{bare}]" if ":" in bare else bare, tried)
    raise GamlensError(f"Cannot listen on {host!r}: {taken}. Give another --port.")


def _places(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[object, ...]]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return [(family, place) for family, _, _, _, place in found]


def _try(family: socket.AddressFamily, place: tuple[object, ...]) -> None:
    """Bind a socket to an address in the way that the server will, and close it again."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        probe.bind(place)


def _reason(host: str, error: OSError) -> str:
    """What is wrong with a host or port, and what to do."""
    if isinstance(error, socket.gaierror):
        return "there is no such host. Give --host 127.0.0.1, or another address of this machine."
    if error.errno in (errno.EACCES, errno.EPERM):
        return "this user may not use the port. Give a --port above 1023."
    if ":" in host and error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
        return "this machine has no IPv6, or another IPv6 address. Give --host 127.0.0.1 or 0.0.0.0 (IPv4)."
    if error.errno == errno.EADDRNOTAVAIL:
        return "this is no address of this machine. Give --host 127.0.0.1, or 0.0.0.0 to let other machines in."
    return f"{error}. Give another --host or --port."
