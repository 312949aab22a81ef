"""Check quickly that a Ray cluster answers at an address. Ray itself would try for many minutes, and say nothing."""

import os
import socket

from gamlens.errors import GamlensError

ADDRESS_HINT = (
    "Start the cluster (`ray start --head`), or check --address: host:6379 on a machine of the cluster, "
    "ray://host:10001 elsewhere; without it, a cluster is started on this machine."
)
CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 10.0
# How every gRPC connection begins: the preface of HTTP/2, then an empty SETTINGS frame in both directions.
HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
SETTINGS_FRAME = 4


def require_answer(address: str) -> None:
    """Raise a GamlensError if nothing at `address` answers as Ray does, by gRPC.

    `address` is host:port, ray://host:port, or "auto" or "local", for which there is nothing to check; nor is there for
    schemes other than ray://, which Ray looks up among its plugins.
    """
    scheme, _, rest = address.rpartition("://")
    if scheme not in ("", "ray", "http", "https") or address in ("auto", "local"):
        return
    host, _, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if scheme.startswith("http") or not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise GamlensError(f"{address!r} is not the address of a Ray cluster. {ADDRESS_HINT}")
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
                return
            connection.settimeout(ANSWER_SECONDS)
            connection.sendall(HTTP2_HELLO)
            answer = connection.recv(9)
    except (OSError, UnicodeError) as error:
        said = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise GamlensError(f"No Ray cluster answers at {address!r}: {said}. {ADDRESS_HINT}") from error
    if len(answer) < 4 or answer[3] != SETTINGS_FRAME:
        raise GamlensError(f"What answers at {address!r} is not a Ray cluster. {ADDRESS_HINT}")
