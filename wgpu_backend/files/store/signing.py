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
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2

from wgpu_backend.errors import StoreError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_PARTS = re.compile(r'(\w+)="([^"]*)"')
_NOTHING = base64.b64encode(hashlib.sha256().hexdigest().encode()).decode()  # the body of a GET


class Key:
    """An ed25519 key.

    Parameters
    ----------
    private : Ed25519PrivateKey
    """

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private

    @classmethod
    def read(cls, path: Path) -> Key:
        """Read a key of OpenSSH's without a passphrase.

        Raises
        ------
        StoreError
            It cannot be read, is of another kind, or is locked; or cryptography is not installed.
        """
        try:
            from cryptography.exceptions import UnsupportedAlgorithm
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
            from cryptography.hazmat.primitives.serialization import load_ssh_private_key
        except ImportError:
            raise StoreError(
                "to sign in needs the package cryptography: `pip install '.[push]'` in the checkout"
            ) from None
        try:
            private = load_ssh_private_key(path.read_bytes(), None)
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from None
        except (ValueError, TypeError, UnsupportedAlgorithm):  # the second where it is locked
            private = None
        if not isinstance(private, Ed25519PrivateKey):
            raise StoreError(f"{path}: needs an ed25519 key of OpenSSH's without a passphrase")
        return cls(private)

    @property
    def name(self) -> str:
        """The public half, as a line of OpenSSH's has it."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        line = self._private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        return line.decode().split()[1]

    def sign(self, message: bytes) -> bytes:
        """Signature of a message, 64 bytes (RFC 8032)."""
        return self._private.sign(message)


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
