"""The listening socket and the HTTP server on it."""

import contextlib
import socket
from collections.abc import Iterator

import uvicorn

BACKLOG = 2048
"""Connections that may wait to be accepted."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; taken before anything slow, so that a port in use is known at once.

    Raises `OSError` that names the address.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise _cannot_listen(host, port, error) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from None
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> OSError:
    return OSError(f"cannot listen on {host} port {port}: {error.strerror}")


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handling, which closes the socket before requests have ended."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
