"""Signing in at a registry, with the key that Ollama keeps in ``id_ed25519``.

A registry that wants to know who pushes answers 401 and says where tokens are. The request for one
is signed, and the token goes with every request from then on.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import httpx2

from wgpu_backend.errors import StoreError

_MAGIC = b"openssh-key-v1\0"
_KIND = b"ssh-ed25519"
_PARTS = re.compile(r'(\w+)="([^"]*)"')
_NOTHING = base64.b64encode(hashlib.sha256().hexdigest().encode()).decode()  # the body of a GET
# The curve of RFC 8032: a point is (X, Y, Z, T) with x = X/Z, y = Y/Z and xy = T/Z.
_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_Y = 4 * pow(5, -1, _P) % _P
_X = 15112221349535400772501151409588531511454012693041857206046113283949847762202
_Point = tuple[int, int, int, int]
_BASE: _Point = (_X, _Y, 1, _X * _Y % _P)


@dataclass(frozen=True, slots=True)
class Key:
    """A pair of keys.

    Parameters
    ----------
    secret, public : bytes
        32 each.
    """

    secret: bytes
    public: bytes

    @classmethod
    def read(cls, path: Path) -> Key:
        """Read a key of OpenSSH's without a passphrase.

        Raises
        ------
        StoreError
            It cannot be read, is of another kind, or is locked.
        """
        try:
            lines = path.read_text("ascii").split("-----")
            return _parsed(base64.b64decode("".join(lines[2].split())))
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from None
        except (ValueError, IndexError):
            raise StoreError(
                f"{path}: needs an ed25519 key of OpenSSH's without a passphrase"
            ) from None

    @property
    def name(self) -> str:
        """The public half, as a line of OpenSSH's has it."""
        return base64.b64encode(_packed(_KIND) + _packed(self.public)).decode()

    def sign(self, message: bytes) -> bytes:
        """Signature of a message, 64 bytes. Its time depends on the key, so not for a service."""
        hashed = hashlib.sha512(self.secret).digest()
        scalar = _clamped(hashed)
        nonce = _number(hashed[32:] + message)
        commitment = _encoded(_times(nonce, _BASE))
        challenge = _number(commitment + self.public + message)
        return commitment + ((nonce + challenge * scalar) % _ORDER).to_bytes(32, "little")


class SignIn(httpx2.Auth):
    """Gets a token from a registry where that asks for one.

    Parameters
    ----------
    address : str
        Of the registry, the only one that gets the token.
    path : Path or None
        Of the key; None for a user who has none.
    """

    def __init__(self, address: str, path: Path | None) -> None:
        self._host = _host(httpx2.URL(address))
        self._path = path
        self._token = ""

    def auth_flow(
        self, request: httpx2.Request
    ) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Send a request, and once more with a token where that is wanted."""
        own = _host(request.url) == self._host
        if own and self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        response = yield request
        told = response.headers.get("WWW-Authenticate", "")
        if response.status_code != 401 or not own or not told.lower().startswith("bearer"):
            return
        if self._path is None or not self._path.exists():
            return
        answer = yield self._asked(dict(_PARTS.findall(told)))
        yield from self._with_token(request, answer)

    def _with_token(
        self, request: httpx2.Request, answer: httpx2.Response
    ) -> Generator[httpx2.Request, httpx2.Response, None]:
        answer.read()
        try:
            self._token = str(answer.json()["token"])
        except (ValueError, KeyError, TypeError):
            status = f"HTTP status {answer.status_code}"
            raise StoreError(f"{self._host} gives no token for {self._path}: {status}") from None
        if not isinstance(request.stream, httpx2.ByteStream):
            raise httpx2.ReadError("there is a token now; what was sent is gone, so send it anew")
        request.headers["Authorization"] = f"Bearer {self._token}"
        yield request

    def _asked(self, parts: dict[str, str]) -> httpx2.Request:
        """The signed request for a token."""
        realm = httpx2.URL(parts.get("realm", ""))
        if _host(realm) != self._host:
            there = _host(realm)[:60] or "no address"
            raise StoreError(f"{self._host} has its tokens at {there}, needs its own address")
        query: list[tuple[str, str | int | float | bool | None]] = [
            ("nonce", secrets.token_urlsafe(16))
        ]
        query += [("scope", each) for each in parts.get("scope", "").split()]
        query += [("service", parts.get("service", "")), ("ts", str(int(time.time())))]
        url = realm.copy_merge_params(query)
        assert self._path is not None
        key = Key.read(self._path)
        signature = key.sign(f"GET,{url},{_NOTHING}".encode())
        proof = f"{key.name}:{base64.b64encode(signature).decode()}"
        return httpx2.Request("GET", url, headers={"Authorization": proof})


def _host(url: httpx2.URL) -> str:
    """Host and port."""
    return url.netloc.decode("ascii", "replace")


# OpenSSH's file.


def _parsed(data: bytes) -> Key:
    if not data.startswith(_MAGIC):
        raise ValueError
    cipher, rest = _taken(data[len(_MAGIC) :])
    _, rest = _taken(rest)  # how a passphrase would become a key
    _, rest = _taken(rest)
    _, rest = _taken(rest[4:])  # the number of keys, and the public half
    private, _ = _taken(rest)
    kind, rest = _taken(private[8:])
    public, rest = _taken(rest)
    both, _ = _taken(rest)
    if cipher != b"none" or kind != _KIND or len(both) != 64 or both[32:] != public:
        raise ValueError
    return Key(both[:32], public)


def _taken(data: bytes) -> tuple[bytes, bytes]:
    size = int.from_bytes(data[:4])
    if len(data) < 4 + size:
        raise ValueError
    return data[4 : 4 + size], data[4 + size :]


def _packed(data: bytes) -> bytes:
    return len(data).to_bytes(4) + data


# Ed25519.


def _number(data: bytes) -> int:
    return int.from_bytes(hashlib.sha512(data).digest(), "little") % _ORDER


def _clamped(hashed: bytes) -> int:
    scalar = int.from_bytes(hashed[:32], "little")
    return (scalar & ~7 & (1 << 254) - 1) | 1 << 254


def _sum(a: _Point, b: _Point) -> _Point:
    minus, plus = (a[1] - a[0]) * (b[1] - b[0]), (a[1] + a[0]) * (b[1] + b[0])
    c, d = 2 * a[3] * b[3] * _D, 2 * a[2] * b[2]
    e, f, g, h = plus - minus, d - c, d + c, plus + minus
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _times(count: int, point: _Point) -> _Point:
    found: _Point = (0, 1, 1, 0)
    while count:
        if count & 1:
            found = _sum(found, point)
        point = _sum(point, point)
        count >>= 1
    return found


def _encoded(point: _Point) -> bytes:
    scale = pow(point[2], -1, _P)
    x, y = point[0] * scale % _P, point[1] * scale % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")
