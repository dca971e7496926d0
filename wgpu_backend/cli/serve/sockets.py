"""Sockets that `serve` listens at."""

from __future__ import annotations

import errno
import os
import socket

from wgpu_backend.cli.failures import UsageError, brief

_NONE_THERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def bound(host: str, port: int) -> list[socket.socket]:
    """Sockets at all addresses of a host; ``localhost`` has two.

    Raises
    ------
    UsageError
        There is no such address, or another program has the port.
    """
    found: list[socket.socket] = []
    try:
        for family, _, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                found.append(socket.create_server(place[:2], family=family, backlog=2048))
            except OSError as error:
                # A machine without IPv6 may have an address of it in its table of hosts.
                if family != socket.AF_INET6 or error.errno not in _NONE_THERE:
                    raise
        if not found:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    except (OSError, ValueError) as error:
        for each in found:
            each.close()
        told = getattr(error, "strerror", None) or "needs an address, such as 127.0.0.1"
        raise UsageError(f"serve: {brief(host)}, port {port}: {told}") from None
    return found
