"""The socket that the server listens on, bound before a model is loaded. The one file of the runtime that opens a
network socket besides the workers' transport.

Knows: addresses. Does not know: HTTP.
"""

from __future__ import annotations

import socket

from draftline.graph.errors import UsageError

Listener = socket.socket
BACKLOG = 2048
UNSENT = 2**16
"""Bytes that the system holds for a client that reads slowly; it would take megabytes for each by itself."""


def bind(host: str, port: int) -> Listener:
    """A listening socket; port 0 takes any free one. Raises UsageError if the address cannot be used."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        server = socket.socket(family, kind, proto)
    except (OSError, OverflowError, UnicodeError) as error:
        raise UsageError(f"--host {host} --port {port}: {error}") from None
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else a port stays taken for a minute
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNSENT)  # accepted sockets inherit it
        server.bind(address)
        server.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        server.close()
        raise UsageError(f"cannot listen on {host} port {port}: {error}; give another --port, 0 for any") from None
    return server


def url(server: Listener) -> str:
    """Where it listens, as a client writes it."""
    host, port = server.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
