"""Pictures from URLs of the network, for servers that allow them.

A client names the address, so it could make the server read what only the server reaches
(server-side request forgery). So only public addresses are asked. A name is resolved once, and the
connection is made to the address that was checked, since a second look-up may give another (DNS
rebinding). Each redirect is checked in the same way. Proxies of the environment are not used.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import SplitResult, quote, urljoin, urlsplit

import h11

from wgpu_backend.server.core.request import RequestError

_PORTS = {"http": 80, "https": 443}
# Ports from here on are of no service that reads a line of HTTP as a command.
_FIRST_OTHER_PORT = 1024
_REDIRECTS = (301, 302, 303, 307, 308)
# RFC 6052 and 8215: their last 32 bits are an IPv4 address.
_TRANSLATED = ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/48")
# Of IANA's registries of special addresses, those that `ipaddress` of some Python takes for public;
# and the address at which a cloud answers its virtual machines alone.
_SPECIAL = tuple(
    map(
        ip_network,
        (
            "192.0.0.0/24",
            "192.88.99.0/24",
            "168.63.129.16/32",
            "100::/64",
            "2001:2::/48",
            "3fff::/20",
            "5f00::/16",
            "fec0::/10",
        ),
    )
)
_READ_NBYTES = 1 << 16
# Characters that a URL has as they are (RFC 3986).
_SAFE = "/%:@!$&'()*+,;=~?"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""A function that returns the addresses of a host and port."""
Connect = Callable[[str, int, str | None], Awaitable[Streams]]
"""A function that connects to an address and port, with TLS for a host where one is given."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file at a URL that a field of a request names, not yet fetched."""

    where: str
    url: str


def is_public(address: str) -> bool:
    """Return whether an address is of the public network.

    IPv4 addresses within IPv6 addresses (mapped, translated, of tunnels) are checked as well.
    """
    try:
        found = ip_address(address)
    except ValueError:
        return False
    return all(map(_is_public, [found, *_list_inner(found)]))


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    special = (
        address.is_private or address.is_loopback or address.is_link_local or address.is_multicast
        or address.is_reserved or address.is_unspecified
        or any(address in each for each in _SPECIAL)
    )  # fmt: skip
    # Translated addresses are reserved, and some versions of Python call those of 6to4 private,
    # but they reach the address within.
    if isinstance(address, IPv6Address) and (
        address.sixtofour or any(address in each for each in _TRANSLATED)
    ):
        return True
    return address.is_global and not special


def _list_inner(address: IPv4Address | IPv6Address) -> list[IPv4Address]:
    """Return the IPv4 addresses within an IPv6 address."""
    if isinstance(address, IPv4Address):
        return []
    found = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    # IPv4-compatible addresses (RFC 4291) begin with 96 zero bits.
    if int(address) >> 32 == 0 or any(address in each for each in _TRANSLATED):
        found.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return [each for each in found if each is not None]


async def _resolve(host: str, port: int) -> Sequence[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(place[0]) for *_, place in found]


@lru_cache(maxsize=1)
def _make_tls() -> ssl.SSLContext:
    return ssl.create_default_context()


async def _connect(address: str, port: int, tls: str | None) -> Streams:
    if tls is None:
        return await asyncio.open_connection(address, port)
    return await asyncio.open_connection(address, port, ssl=_make_tls(), server_hostname=tls)


class _FetchError(Exception):
    """The reason why a file was not fetched."""


@dataclass(frozen=True, slots=True)
class _Target:
    """A URL taken apart, with a port that may be asked."""

    parts: SplitResult
    host: str
    port: int

    @property
    def tls(self) -> str | None:
        return self.host if self.parts.scheme == "https" else None

    def make_request(self) -> h11.Request:
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.port != _PORTS[self.parts.scheme]:
            host = f"{host}:{self.port}"
        path = quote(self.parts.path or "/", safe=_SAFE)
        query = quote(self.parts.query, safe=_SAFE)
        headers = [
            ("Host", host), ("User-Agent", "wgpu-backend"), ("Accept", "image/*"),
            ("Accept-Encoding", "identity"), ("Connection", "close"),
        ]  # fmt: skip
        target = f"{path}?{query}" if query else path
        return h11.Request(method="GET", target=target, headers=headers)


def _parse_url(url: str) -> _Target:
    try:
        parts = urlsplit(url)
        port = parts.port
        host = parts.hostname or ""
        # Names in other scripts; IPv6 addresses have colons, which are in no name.
        host = host if ":" in host else host.encode("idna").decode()
    # UnicodeError is one.
    except ValueError:
        raise _FetchError("is not a URL") from None
    if parts.scheme not in _PORTS:
        raise _FetchError(f"scheme {parts.scheme[:20]!r}, needs http or https")
    if parts.username is not None or parts.password is not None:
        raise _FetchError("has a user name, needs a URL without")
    if not host:
        raise _FetchError("names no host")
    port = _PORTS[parts.scheme] if port is None else port
    if port not in _PORTS.values() and port < _FIRST_OTHER_PORT:
        raise _FetchError(f"port {port}, needs 80, 443, or at least {_FIRST_OTHER_PORT}")
    return _Target(parts, host, port)


class RemoteFiles:
    """A reader of files at URLs.

    Parameters
    ----------
    resolve, connect : callable
        For tests.
    most_nbytes : int
        Of one file.
    most_total_nbytes : int
        Of all files of a request.
    most_seconds : float
        For all files of a request.
    most_hops : int
        Redirects of a URL.
    most_at_once : int
        Requests whose files are fetched at a time; others wait.
    """

    def __init__(
        self,
        resolve: Resolve = _resolve,
        connect: Connect = _connect,
        *,
        most_nbytes: int = 20 << 20,
        most_total_nbytes: int = 64 << 20,
        most_seconds: float = 20.0,
        most_hops: int = 3,
        most_at_once: int = 8,
    ) -> None:
        self._resolve = resolve
        self._connect = connect
        self._most = most_nbytes
        self._most_total = most_total_nbytes
        self._seconds = most_seconds
        self._hops = most_hops
        self._places = asyncio.Semaphore(most_at_once)

    async def fetch_all(self, files: Sequence[RemoteFile]) -> list[bytes]:
        """Return the bytes of the files of a request.

        Raises
        ------
        RequestError
            A URL is refused, does not answer with a file, or takes too much.
        """
        found: list[bytes] = []
        file = files[0] if files else None
        try:
            async with asyncio.timeout(self._seconds), self._places:
                for file in files:
                    room = min(self._most, self._most_total - sum(map(len, found)))
                    found.append(await self._fetch(file.url, room))
        except TimeoutError:
            raise _make_error(file, f"took longer than {self._seconds:g} s") from None
        except _FetchError as error:
            raise _make_error(file, str(error)) from None
        except h11.ProtocolError:
            raise _make_error(file, "its server does not speak HTTP") from None
        except ssl.SSLError:
            raise _make_error(file, "its server has no TLS, or no valid certificate") from None
        except OSError:
            raise _make_error(file, "its server does not answer") from None
        return found

    async def _fetch(self, url: str, room: int) -> bytes:
        for _ in range(self._hops + 1):
            status, following, data = await self._ask(_parse_url(url), room)
            if status == 200:
                return data
            if status not in _REDIRECTS or not following:
                raise _FetchError(f"its server answers with status {status}")
            url = urljoin(url, following)
        raise _FetchError(f"has more than {self._hops} redirects")

    async def _ask(self, target: _Target, room: int) -> tuple[int, str, bytes]:
        """Return the status of an answer, the URL that it redirects to, and its body."""
        try:
            addresses = await self._resolve(target.host, target.port)
        except OSError:
            raise _FetchError("its host has no address") from None
        # A name with both kinds of addresses is refused as a whole. The error names no address: of
        # an internal name, it is nothing that a client should learn.
        if not addresses or not all(map(is_public, addresses)):
            raise _FetchError("its host, or that of a redirect, has no public address")
        reader, writer = await self._connect(addresses[0], target.port, target.tls)
        try:
            return await _exchange(reader, writer, target.make_request(), room)
        finally:
            writer.transport.abort()


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: h11.Request, room: int
) -> tuple[int, str, bytes]:
    connection = h11.Connection(h11.CLIENT)
    writer.write((connection.send(request) or b"") + (connection.send(h11.EndOfMessage()) or b""))
    status, data = 0, bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(_READ_NBYTES))
        elif isinstance(event, h11.Response):
            status = event.status_code
            headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
            if status != 200:
                return status, headers.get("location", ""), b""
            _require_plain(headers, room)
        elif isinstance(event, h11.Data):
            data += event.data
            if len(data) > room:
                raise _FetchError(f"has more than {room} bytes")
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            return status, "", bytes(data)


def _require_plain(headers: dict[str, str], room: int) -> None:
    coding = headers.get("content-encoding", "identity")
    if coding != "identity":
        raise _FetchError(f"comes in the encoding {coding[:20]!r}, which was not asked for")
    # h11 has checked that it is a number.
    if int(headers.get("content-length", 0)) > room:
        raise _FetchError(f"has {headers['content-length']} bytes, needs at most {room}")


def _make_error(file: RemoteFile | None, why: str) -> RequestError:
    where, url = (file.where, file.url) if file else ("", "")
    return RequestError(400, f"{where}: {url[:80]!r}: {why}")
