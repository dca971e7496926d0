"""Sockets that `serve` listens at."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence

from wgpu_backend.cli.failures import UsageError, brief

_NONE_THERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def all_bound(hosts: Sequence[str], port: int) -> tuple[list[socket.socket], int]:
    """Sockets at all addresses of some hosts, and their port: the system's choice for 0.

    Raises
    ------
    UsageError
        As `bound`; those of other hosts are closed.
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
    """Sockets at all addresses of a host; ``localhost`` has two, at one port.

    Raises
    ------
    UsageError
        There is no such address, or another program has the port.
    """
    found: list[socket.socket] = []
    try:
        for family, _, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                where = (place[0], _port_of(found, port))
                found.append(socket.create_server(where, family=family, backlog=2048))
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
