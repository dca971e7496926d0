"""Pushing of models to a registry: existing blobs are skipped, interrupted uploads resume.

This is Docker's upload protocol, as Ollama's registry has it: a blob is sent in chunks to a URL
from the registry, which may redirect a chunk to a storage service. Registries that require sign-in
get requests signed as by Ollama, with the key in ``id_ed25519``: the registry answers 401 with the
URL of tokens, the request for a token is signed, and the token is sent with every further request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import httpx2

from wgpu_backend.errors import StoreError
from wgpu_backend.files.store.files import CHUNK, replace
from wgpu_backend.files.store.manifest import MANIFEST_TYPE, Layer, digest_hex
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.pull import (
    STALL_SECONDS,
    TRIES,
    Progress,
    RegistryFailed,
    Wait,
    registry_url,
    require_tls,
)
from wgpu_backend.files.store.store import Entry, Store

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Result = TypeVar("Result")
# Bytes of a chunk.
PART = 100_000_000
_BUSY = (408, 429, 500, 502, 503, 504)
_RANGE = re.compile(r"(?:bytes=)?0-(\d+)")


class PushCancelled(StoreError):
    """A cancelled push; blobs that the registry has are not sent again."""


class _Again(Exception):
    """A temporary failure of the registry."""


@dataclass(slots=True)
class _Upload:
    """An upload of a blob.

    Parameters
    ----------
    layer : Layer
        The layer of the blob.
    path : Path
        Path of the blob.
    note : Path
        File that records the URL, so that another push can resume.
    address : str
        URL of the next chunk.
    sent : int
        Number of bytes that the registry has.
    redirected : bool
        Whether chunks went to a storage service, which requires a checksum of their checksums.
    """

    layer: Layer
    path: Path
    note: Path
    address: str = ""
    sent: int = 0
    redirected: bool = field(default=False)

    def save(self) -> None:
        """Record the URL."""
        kept = {"address": self.address, "redirected": self.redirected}
        # Private, since some URLs contain the only credential that a storage service needs.
        replace(self.note, json.dumps(kept).encode(), private=True)

    def query(self, part: int) -> dict[str, str]:
        """Return the last request's query: the digest, and for a storage service the checksum."""
        found = {"digest": self.layer.digest}
        if self.redirected:
            # S3's ETag of a multipart upload: the MD5 of the parts' MD5s, and the number of parts.
            sums = [hashlib.md5(each, usedforsecurity=False).digest() for each in self._parts(part)]
            whole = hashlib.md5(b"".join(sums), usedforsecurity=False).hexdigest()
            found["etag"] = f"{whole}-{len(sums)}"
        return found

    def _parts(self, part: int) -> Iterator[bytes]:
        """Yield the chunks of the blob."""
        with self.path.open("rb") as file:
            while data := file.read(part):
                yield data


_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
# Encoded digest of the empty body of a GET request.
_EMPTY_BODY = base64.b64encode(hashlib.sha256().hexdigest().encode()).decode()


class Key:
    """An ed25519 key.

    Parameters
    ----------
    private : Ed25519PrivateKey
        The private half.
    """

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private

    @classmethod
    def read(cls, path: Path) -> Key:
        """Read an OpenSSH key without a passphrase.

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
        except (ValueError, TypeError, UnsupportedAlgorithm):
            # TypeError means a passphrase.
            private = None
        if not isinstance(private, Ed25519PrivateKey):
            raise StoreError(f"{path}: needs an ed25519 key of OpenSSH's without a passphrase")
        return cls(private)

    @property
    def name(self) -> str:
        """Return the public half as in a line of OpenSSH's."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        line = self._private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        return line.decode().split()[1]

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message, 64 bytes (RFC 8032)."""
        return self._private.sign(message)


class SignIn(httpx2.Auth):
    """Authentication that gets a token from a registry if it requires one.

    Parameters
    ----------
    address : str
        URL of the registry, the only host that gets the token.
    path : Path or None
        File of the key; None if there is no key.
    """

    def __init__(self, address: str, path: Path | None) -> None:
        self._host = _host(httpx2.URL(address))
        self._path = path
        self._token = ""

    def auth_flow(
        self, request: httpx2.Request
    ) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Send a request, and repeat it with a token if required."""
        own = _host(request.url) == self._host
        if own and self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        response = yield request
        challenge = response.headers.get("WWW-Authenticate", "")
        if response.status_code != 401 or not own or not challenge.lower().startswith("bearer"):
            return
        if self._path is None or not self._path.exists():
            return
        answer = yield self._token_request(dict(_CHALLENGE.findall(challenge)))
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
        # A stream that was read once cannot be sent again.
        if not isinstance(request.stream, httpx2.ByteStream):
            raise httpx2.ReadError(
                "a token was received after the chunk was sent; the chunk has to be sent again"
            )
        request.headers["Authorization"] = f"Bearer {self._token}"
        yield request

    def _token_request(self, parts: dict[str, str]) -> httpx2.Request:
        """Return the signed request for a token."""
        realm = httpx2.URL(parts.get("realm", ""))
        # Otherwise a registry could have a signature made for another server.
        if _host(realm) != self._host:
            there = _host(realm)[:60] or "no address"
            raise StoreError(
                f"{self._host} sends clients to {there} for a token, needs its own address"
            )
        query: list[tuple[str, str | int | float | bool | None]] = [
            ("nonce", secrets.token_urlsafe(16))
        ]
        query += [("scope", each) for each in parts.get("scope", "").split()]
        query += [("service", parts.get("service", "")), ("ts", str(int(time.time())))]
        url = realm.copy_merge_params(query)
        assert self._path is not None
        key = Key.read(self._path)
        signature = key.sign(f"GET,{url},{_EMPTY_BODY}".encode())
        proof = f"{key.name}:{base64.b64encode(signature).decode()}"
        return httpx2.Request("GET", url, headers={"Authorization": proof})


def _host(url: httpx2.URL) -> str:
    """Return host and port."""
    return url.netloc.decode("ascii", "replace")


class Pusher:
    """A client that pushes models to a registry.

    Parameters
    ----------
    store : Store
        The store to read from.
    insecure : bool
        Allow ``http://`` registries.
    report : callable
        Called with `Progress`.
    cancelled : callable
        Called often; a true result ends the push.
    wait : callable
        Sleeps between attempts.
    part : int
        Bytes of a chunk.
    key : Path or None
        File of an ed25519 key to sign in with, if the registry requires it.
    """

    def __init__(
        self,
        store: Store,
        *,
        insecure: bool = False,
        report: Callable[[Progress], None] = lambda _: None,
        cancelled: Callable[[], bool] = lambda: False,
        wait: Wait = time.sleep,
        part: int = PART,
        key: Path | None = None,
    ) -> None:
        self._store = store
        self._insecure = insecure
        self._report = report
        self._cancelled = cancelled
        self._wait = wait
        self._part = part
        self._key = key

    def push(self, name: ModelName) -> Entry:
        """Push a model to the registry in its name.

        Raises
        ------
        ModelNotFound
            The store has no such model.
        StoreError
            The registry cannot be reached, or does not accept it from this user.
        """
        self._require_allowed(f"{name.scheme}://", str(name))
        self._report(Progress("retrieving manifest"))
        entry = self._store.entry(name)
        timeout, signing = httpx2.Timeout(STALL_SECONDS), SignIn(registry_url(name), self._key)
        with httpx2.Client(timeout=timeout, auth=signing) as client:
            for layer in entry.manifest.blobs:
                self._blob(client, name, layer)
            self._report(Progress("pushing manifest"))
            url = f"{registry_url(name)}/manifests/{name.tag}"
            headers = {"Content-Type": MANIFEST_TYPE}
            data = entry.manifest.encode()
            self._retry(
                name, lambda: self._require_success(client.put(url, content=data, headers=headers))
            )
        self._report(Progress("success"))
        return entry

    def _require_allowed(self, address: str, where: str) -> None:
        if address.startswith("http://") and not self._insecure:
            raise StoreError(f"{where}: http is not encrypted; --insecure allows it")

    def _blob(self, client: httpx2.Client, name: ModelName, layer: Layer) -> None:
        url = f"{registry_url(name)}/blobs/{layer.digest}"
        if not self._has(client, name, url):
            notes = self._store.root / ".uploads"
            # A URL cannot be a file's name.
            note = notes / hashlib.sha256(url.encode()).hexdigest()
            upload = _Upload(layer, self._store.blob(layer.digest), note)
            self._retry(name, lambda: self._begin(client, name, upload))
            while upload.sent < layer.size:
                self._retry(name, lambda: self._chunk(client, upload))
            self._retry(name, lambda: self._end(client, upload))
            note.unlink(missing_ok=True)
        self._report_blob(layer, layer.size)

    def _has(self, client: httpx2.Client, name: ModelName, url: str) -> bool:
        """Return whether the registry has a blob; it may redirect to a storage service."""
        found = self._retry(name, lambda: _usable(client.head(url)))
        return found.status_code in (200, 307)

    def _begin(self, client: httpx2.Client, name: ModelName, upload: _Upload) -> None:
        """Get a URL for the upload: that of an earlier push if it is still valid."""
        if not self._store.read_only and self._resume(client, upload):
            return
        url = f"{registry_url(name)}/blobs/uploads/"
        response = self._require_success(client.post(url, headers={"Content-Length": "0"}))
        upload.sent = 0
        self._go_on(upload, response)

    def _resume(self, client: httpx2.Client, upload: _Upload) -> bool:
        try:
            kept = json.loads(upload.note.read_bytes())
            upload.address, upload.redirected = str(kept["address"]), bool(kept["redirected"])
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return self._locate(client, upload)

    def _locate(self, client: httpx2.Client, upload: _Upload) -> bool:
        """Ask the registry how many bytes it has; return False if it does not know the upload."""
        self._require_allowed(upload.address, upload.address)
        response = _usable(client.get(upload.address))
        found = _RANGE.fullmatch(response.headers.get("Range", ""))
        if response.status_code != 204 or found is None:
            return False
        last = int(found[1])
        # Registries report 0-0 for an empty upload.
        upload.sent = last + 1 if last else 0
        if upload.sent > upload.layer.size:
            return False
        self._go_on(upload, response)
        return True

    def _go_on(self, upload: _Upload, response: httpx2.Response) -> None:
        """Record the URL for the next chunk, from a response."""
        headers = response.headers
        given = headers.get("Docker-Upload-Location") or headers.get("Location") or upload.address
        if not given:
            raise StoreError(f"{response.url}: the response has no URL for the upload")
        upload.address = str(response.url.join(given))
        self._require_allowed(upload.address, upload.address)
        if not self._store.read_only:
            upload.save()

    def _chunk(self, client: httpx2.Client, upload: _Upload) -> None:
        start = upload.sent
        size = min(self._part, upload.layer.size - start)
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(size),
            "Content-Range": f"{start}-{start + size - 1}",
            "X-Redirect-Uploads": "1",
        }
        try:
            data = self._read(upload, start, size)
            response = _usable(client.patch(upload.address, content=data, headers=headers))
            if response.status_code == 307:
                self._to_storage(client, upload, response, start, size)
            else:
                self._require_success(response)
        except (httpx2.HTTPError, _Again):
            if not upload.redirected and not self._locate(client, upload):
                raise StoreError(
                    f"{upload.address}: the registry no longer has the upload"
                ) from None
            raise
        upload.sent = start + size
        self._go_on(upload, response)

    def _to_storage(
        self,
        client: httpx2.Client,
        upload: _Upload,
        response: httpx2.Response,
        start: int,
        size: int,
    ) -> None:
        """Send a chunk to the URL from the registry."""
        storage = str(response.url.join(response.headers.get("Location", "")))
        self._require_allowed(storage, storage)
        headers = {"Content-Length": str(size)}
        self._require_success(
            client.put(storage, content=self._read(upload, start, size), headers=headers)
        )
        upload.redirected = True

    def _read(self, upload: _Upload, start: int, size: int) -> Iterator[bytes]:
        with upload.path.open("rb") as file:
            file.seek(start)
            done = 0
            while done < size:
                data = file.read(min(CHUNK, size - done))
                if not data:
                    raise StoreError(f"{upload.path}: ends before its size; pull the model again")
                yield data
                done += len(data)
                self._check()
                self._report_blob(upload.layer, start + done)

    def _end(self, client: httpx2.Client, upload: _Upload) -> None:
        query = upload.query(self._part)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": "0"}
        url = httpx2.URL(upload.address).copy_merge_params(query)
        self._require_success(client.put(url, headers=headers))

    def _require_success(self, response: httpx2.Response) -> httpx2.Response:
        """Return a response if it was successful, and raise otherwise."""
        status = _usable(response).status_code
        if 200 <= status < 300:
            return response
        if status in (401, 403):
            raise StoreError(
                f"{response.url.host} rejects the upload: HTTP status {status}"
                f"{_error_text(response)}; {self._remedy()}"
            )
        raise StoreError(f"{response.url}: HTTP status {status}{_error_text(response)}")

    def _remedy(self) -> str:
        """Suggest a remedy if a registry rejects the user."""
        if self._key is None:
            return "there is no key to sign in with"
        if not self._key.exists():
            return f"push signs in with {self._key}, which is not there; ssh-keygen makes one"
        return f"it has to know the public half of {self._key}, and whose the model is"

    def _retry(self, name: ModelName, act: Callable[[], Result]) -> Result:
        for attempt in range(TRIES):
            self._check()
            try:
                return act()
            except (httpx2.HTTPError, _Again) as error:
                require_tls(error, name, "push")
                if attempt == TRIES - 1:
                    reason = str(error) or type(error).__name__
                    raise RegistryFailed(f"push: {reason}, after {TRIES} tries") from error
                self._wait(min(2.0**attempt, 30.0))
        # The last try raises.
        raise AssertionError

    def _check(self) -> None:
        if self._cancelled():
            raise PushCancelled("the push was cancelled")

    def _report_blob(self, layer: Layer, completed: int) -> None:
        short = digest_hex(layer.digest)[:12]
        self._report(Progress(f"pushing {short}", layer.digest, layer.size, completed))


def _usable(response: httpx2.Response) -> httpx2.Response:
    """Return a response unless it asks for a retry."""
    if response.status_code in _BUSY:
        raise _Again(f"{response.url}: HTTP status {response.status_code}")
    return response


def _error_text(response: httpx2.Response) -> str:
    """Return a registry's error message, in brackets."""
    try:
        found = response.json()["errors"][0]["message"]
    except (ValueError, KeyError, IndexError, TypeError):
        return ""
    return f" ({str(found)[:200]})"
