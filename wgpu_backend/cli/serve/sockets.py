"""The sockets of `serve`."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence

from wgpu_backend.cli.failures import UsageError, brief

_NONE_THERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def all_bound(hosts: Sequence[str], port: int) -> tuple[list[socket.socket], int]:
    """Open sockets at all addresses of hosts; return them and their port, chosen if 0.

    Raises
    ------
    UsageError
        See `bound`; sockets that were opened already are closed.
    """
    found: list[socket.socket] = []
    try:
        for host in hosts:
            found += bound(host.strip("[]"), _port_of(found, port))
    except UsageError:
        for each in found:
            each.close()
        raise
    return found, _port_of(found, port)


def _port_of(found: Sequence[socket.socket], port: int) -> int:
    return found[0].getsockname()[1] if found and not port else port


def bound(host: str, port: int) -> list[socket.socket]:
    """Open sockets at all addresses of a host, at one port; ``localhost`` has two addresses.

    Raises
    ------
    UsageError
        The address does not exist, or another program uses the port.
    """
    found: list[socket.socket] = []
    try:
        for family, _, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                where = (place[0], _port_of(found, port))
                found.append(socket.create_server(where, family=family, backlog=2048))
            except OSError as error:
                # A machine without IPv6 may still have an IPv6 address in its hosts file.
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
