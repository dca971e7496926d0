"""Models brought to a registry: what it has is not sent again, what was cut off is gone on with.

This is Docker's protocol of uploads, as Ollama's registry has it: a blob goes in chunks to an
address that the registry gives, which may send a chunk on to a storage of its own. Where it asks
who that is, requests are signed as Ollama signs them.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

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
    address_of,
    require_tls,
)
from wgpu_backend.files.store.signing import SignIn
from wgpu_backend.files.store.store import Entry, Store

Result = TypeVar("Result")
PART = 100_000_000  # bytes of a chunk
_BUSY = (408, 429, 500, 502, 503, 504)
_RANGE = re.compile(r"(?:bytes=)?0-(\d+)")


class PushCancelled(StoreError):
    """A push that was called off; what the registry has is not sent again."""


class _Again(Exception):
    """The registry could not take something now."""


@dataclass(slots=True)
class _Upload:
    """A blob on its way.

    Parameters
    ----------
    layer : Layer
    path : Path
        Of the blob.
    note : Path
        Remembers the address, so that another push goes on.
    address : str
        Where the next chunk goes.
    sent : int
        Bytes that the registry has.
    redirected : bool
        Chunks went to a storage, which wants a sum of their sums.
    """

    layer: Layer
    path: Path
    note: Path
    address: str = ""
    sent: int = 0
    redirected: bool = field(default=False)

    def save(self) -> None:
        """Remember the address."""
        kept = {"address": self.address, "redirected": self.redirected}
        # Some addresses are all that a storage asks for.
        replace(self.note, json.dumps(kept).encode(), private=True)

    def query(self, part: int) -> dict[str, str]:
        """What ends it: the digest, and the sum of the sums of chunks where a storage has them."""
        found = {"digest": self.layer.digest}
        if self.redirected:
            sums = [hashlib.md5(each, usedforsecurity=False).digest() for each in self._parts(part)]
            whole = hashlib.md5(b"".join(sums), usedforsecurity=False).hexdigest()
            found["etag"] = f"{whole}-{len(sums)}"
        return found

    def _parts(self, part: int) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            while data := file.read(part):
                yield data


class Pusher:
    """Brings models to a registry.

    Parameters
    ----------
    store : Store
    insecure : bool
        Allow ``http://`` registries.
    told : callable
        Called with `Progress`.
    cancelled : callable
        Asked often; true ends the push.
    wait : callable
        Sleeps between tries.
    part : int
        Bytes of a chunk.
    key : Path or None
        Of an ed25519 key that signs in where a registry asks for that.
    """

    def __init__(
        self,
        store: Store,
        *,
        insecure: bool = False,
        told: Callable[[Progress], None] = lambda _: None,
        cancelled: Callable[[], bool] = lambda: False,
        wait: Wait = time.sleep,
        part: int = PART,
        key: Path | None = None,
    ) -> None:
        self._store = store
        self._insecure = insecure
        self._told = told
        self._cancelled = cancelled
        self._wait = wait
        self._part = part
        self._key = key

    def push(self, name: ModelName) -> Entry:
        """Bring a model, whose name says where to.

        Raises
        ------
        ModelNotFound
            The store has no such model.
        StoreError
            The registry cannot be reached, or takes it from nobody or not from this user.
        """
        self._require_allowed(f"{name.scheme}://", str(name))
        self._told(Progress("retrieving manifest"))
        entry = self._store.entry(name)
        timeout, signing = httpx2.Timeout(STALL_SECONDS), SignIn(address_of(name), self._key)
        with httpx2.Client(timeout=timeout, auth=signing) as client:
            for layer in entry.manifest.blobs:
                self._blob(client, name, layer)
            self._told(Progress("pushing manifest"))
            url = f"{address_of(name)}/manifests/{name.tag}"
            headers = {"Content-Type": MANIFEST_TYPE}
            data = entry.manifest.encoded()
            self._tried(name, lambda: self._sent(client.put(url, content=data, headers=headers)))
        self._told(Progress("success"))
        return entry

    def _require_allowed(self, address: str, where: str) -> None:
        if address.startswith("http://") and not self._insecure:
            raise StoreError(f"{where}: http is not encrypted; --insecure allows it")

    def _blob(self, client: httpx2.Client, name: ModelName, layer: Layer) -> None:
        url = f"{address_of(name)}/blobs/{layer.digest}"
        if not self._has(client, name, url):
            notes = self._store.root / ".uploads"
            note = notes / hashlib.sha256(url.encode()).hexdigest()
            upload = _Upload(layer, self._store.blob(layer.digest), note)
            self._tried(name, lambda: self._begin(client, name, upload))
            while upload.sent < layer.size:
                self._tried(name, lambda: self._chunk(client, upload))
            self._tried(name, lambda: self._end(client, upload))
            note.unlink(missing_ok=True)
        self._tell(layer, layer.size)

    def _has(self, client: httpx2.Client, name: ModelName, url: str) -> bool:
        """Whether the registry has a blob; a storage that has it may be elsewhere."""
        found = self._tried(name, lambda: _usable(client.head(url)))
        return found.status_code in (200, 307)

    def _begin(self, client: httpx2.Client, name: ModelName, upload: _Upload) -> None:
        """Get an address to send to: that of an earlier push, if it still stands."""
        if not self._store.read_only and self._resumed(client, upload):
            return
        url = f"{address_of(name)}/blobs/uploads/"
        response = self._sent(client.post(url, headers={"Content-Length": "0"}))
        upload.sent = 0
        self._go_on(upload, response)

    def _resumed(self, client: httpx2.Client, upload: _Upload) -> bool:
        try:
            kept = json.loads(upload.note.read_bytes())
            upload.address, upload.redirected = str(kept["address"]), bool(kept["redirected"])
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return self._located(client, upload)

    def _located(self, client: httpx2.Client, upload: _Upload) -> bool:
        """Ask how much the registry has; false where it knows nothing of the upload."""
        self._require_allowed(upload.address, upload.address)
        response = _usable(client.get(upload.address))
        found = _RANGE.fullmatch(response.headers.get("Range", ""))
        if response.status_code != 204 or found is None:
            return False
        last = int(found[1])
        upload.sent = last + 1 if last else 0  # of nothing, registries say 0-0
        if upload.sent > upload.layer.size:
            return False
        self._go_on(upload, response)
        return True

    def _go_on(self, upload: _Upload, response: httpx2.Response) -> None:
        """Take the address of the next chunk."""
        headers = response.headers
        given = headers.get("Docker-Upload-Location") or headers.get("Location") or upload.address
        if not given:
            raise StoreError(f"{response.url}: gives no address for an upload")
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
                self._sent(response)
        except (httpx2.HTTPError, _Again):
            if not upload.redirected and not self._located(client, upload):
                raise StoreError(f"{upload.address}: the registry forgot the upload") from None
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
        """Send a chunk where the registry says."""
        storage = str(response.url.join(response.headers.get("Location", "")))
        self._require_allowed(storage, storage)
        headers = {"Content-Length": str(size)}
        self._sent(client.put(storage, content=self._read(upload, start, size), headers=headers))
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
                self._tell(upload.layer, start + done)

    def _end(self, client: httpx2.Client, upload: _Upload) -> None:
        query = upload.query(self._part)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": "0"}
        url = httpx2.URL(upload.address).copy_merge_params(query)
        self._sent(client.put(url, headers=headers))

    def _sent(self, response: httpx2.Response) -> httpx2.Response:
        """The answer to something that was to be taken."""
        status = _usable(response).status_code
        if 200 <= status < 300:
            return response
        if status in (401, 403):
            raise StoreError(
                f"{response.url.host} takes nothing from you: HTTP status {status}"
                f"{_told_by(response)}; {self._remedy()}"
            )
        raise StoreError(f"{response.url}: HTTP status {status}{_told_by(response)}")

    def _remedy(self) -> str:
        """What may help where a registry takes nothing."""
        if self._key is None:
            return "there is no key to sign in with"
        if not self._key.exists():
            return f"push signs in with {self._key}, which is not there; ssh-keygen makes one"
        return f"it has to know the public half of {self._key}, and whose the model is"

    def _tried(self, name: ModelName, act: Callable[[], Result]) -> Result:
        for attempt in range(TRIES):
            self._check()
            try:
                return act()
            except (httpx2.HTTPError, _Again) as error:
                require_tls(error, name, "push")
                if attempt == TRIES - 1:
                    told = str(error) or type(error).__name__
                    raise RegistryFailed(f"push: {told}, after {TRIES} tries") from error
                self._wait(min(2.0**attempt, 30.0))
        raise AssertionError  # the last try raises

    def _check(self) -> None:
        if self._cancelled():
            raise PushCancelled("the push was cancelled")

    def _tell(self, layer: Layer, completed: int) -> None:
        short = digest_hex(layer.digest)[:12]
        self._told(Progress(f"pushing {short}", layer.digest, layer.size, completed))


def _usable(response: httpx2.Response) -> httpx2.Response:
    """The same, unless it says to come again."""
    if response.status_code in _BUSY:
        raise _Again(f"{response.url}: HTTP status {response.status_code}")
    return response


def _told_by(response: httpx2.Response) -> str:
    """What a registry says of an error, in brackets."""
    try:
        found = response.json()["errors"][0]["message"]
    except (ValueError, KeyError, IndexError, TypeError):
        return ""
    return f" ({str(found)[:200]})"
