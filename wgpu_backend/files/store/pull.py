"""Pulling of models from a registry: resumable, in parallel parts, verified, and atomic.

Ollama's registry and Hugging Face (``hf.co/owner/repo:Q4_K_M``) have the same protocol. The state
of a pull is in Ollama's files, so either program resumes the other's pulls. A split file, for which
Hugging Face's registry has no manifest, is fetched as the Hub's files and becomes one blob.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import quote

import httpx2
from filelock import FileLock, Timeout

from wgpu_backend.errors import ModelNotFound, StoreError
from wgpu_backend.files.gguf.reader import PART_NAME
from wgpu_backend.files.store.files import (
    Part,
    forget,
    kept_parts,
    partial_path,
    plan_parts,
    settle,
    sha256,
)
from wgpu_backend.files.store.manifest import (
    LAYER_TYPE,
    MANIFEST_TYPE,
    MAX_NBYTES,
    Layer,
    Manifest,
    digest_hex,
    parse_manifest,
)
from wgpu_backend.files.store.modelfile import Modelfile
from wgpu_backend.files.store.names import HOST, ModelName
from wgpu_backend.files.store.store import Entry, Store, require_room
from wgpu_backend.files.store.stored import create, read_config

STREAMS = 4
# Ollama's limits, so that both programs plan the same parts.
MIN_PART, MAX_PART = 100_000_000, 1_000_000_000
TRIES = 6
STALL_SECONDS = 30.0
# Bytes between notes of a part's progress.
_SAVED_EVERY = 8 << 20
_REPORT_EVERY = 1 << 18
# Seconds between checks for cancellation.
_LOOK_SECONDS = 0.2
# HTTP statuses after which a retry may succeed.
_BUSY = {408, 429, 500, 502, 503, 504}
# Key of a config blob with the digests of the split file that a model was made from.
_PARTS = "parts"
# A retry does not help: the file is gone, or this client may not have it.
_REFUSED = {401, 403, 404, 410}

Wait = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a pull.

    Parameters
    ----------
    status : str
        Status in Ollama's words.
    digest : str
        Digest of the blob that is fetched; empty if there is none.
    total, completed : int
        Bytes of the blob.
    """

    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0


class PullCancelled(StoreError):
    """A cancelled pull, whose parts are kept for the next one."""


class RegistryFailed(StoreError):
    """A registry that cannot be reached, or violates the protocol."""


class _NoRanges(Exception):
    """A server without range requests."""


class Puller:
    """A client that pulls models into a store.

    Parameters
    ----------
    store : Store
        The store to write to.
    insecure : bool
        Allow ``http://`` registries.
    streams : int
        Number of parallel requests.
    report : callable
        Called with `Progress`, from several threads, one at a time.
    cancelled : callable
        Called often; a true result ends the pull.
    wait : callable
        Sleeps between attempts.
    part_sizes : pair of int
        Smallest and largest part.
    """

    def __init__(
        self,
        store: Store,
        *,
        insecure: bool = False,
        streams: int = STREAMS,
        report: Callable[[Progress], None] = lambda _: None,
        cancelled: Callable[[], bool] = lambda: False,
        wait: Wait = time.sleep,
        part_sizes: tuple[int, int] = (MIN_PART, MAX_PART),
    ) -> None:
        self._store = store
        self._insecure = insecure
        self._streams = streams
        self._report = report
        self._cancelled = cancelled
        self._wait = wait
        self._part_sizes = part_sizes
        self._lock = threading.Lock()

    def pull(self, name: ModelName) -> Entry:
        """Pull a model.

        Raises
        ------
        ModelNotFound
            The registry has no such model.
        StoreError
            The registry cannot be reached or sends invalid data, a digest is wrong, or the disk is
            full. Completed parts stay for the next pull.
        """
        if name.scheme == "http" and not self._insecure:
            raise StoreError(f"{name}: http is not encrypted; --insecure allows it")
        self._store.require_writable()
        timeout = httpx2.Timeout(STALL_SECONDS)
        hooks = {"request": [self._require_allowed]}
        with httpx2.Client(timeout=timeout, follow_redirects=True, event_hooks=hooks) as client:
            self._report(Progress("pulling manifest"))
            try:
                manifest = self._manifest(client, name)
            except ModelNotFound:
                entry = None if name.host == HOST else self._split(client, name)
                if entry is None:
                    raise
                return entry
            require_room(self._store.root, sum(map(self._missing, manifest.blobs)))
            for layer in manifest.blobs:
                self._blob(client, f"{registry_url(name)}/blobs/{layer.digest}", layer)
        self._report(Progress("writing manifest"))
        entry = self._store.put(name, manifest)
        self._report(Progress("success"))
        return entry

    def _split(self, client: httpx2.Client, name: ModelName) -> Entry | None:
        """Pull a split file, which Hugging Face's registry rejects, and make one blob of it.

        Returns None if the repository has no such file.
        """
        files = list_files(tree_url(name), lambda url: self._page(client, name, url))
        parts = find_parts(files, name)
        if not parts:
            return None
        layers = [
            Layer(LAYER_TYPE + "model", f"sha256:{part.sha256 or _own_digest(part)}", part.size)
            for part in parts
        ]
        digests = [layer.digest for layer in layers]
        kept = self._find_kept(name, digests)
        if kept is not None:
            self._report(Progress("success"))
            return kept
        # Room for the parts, and for one file of all of them.
        more = sum(layer.size for layer in layers)
        require_room(self._store.root, sum(map(self._missing, layers)) + more)
        for part, layer in zip(parts, layers, strict=True):
            self._blob(client, file_url(name, part), layer, checked=bool(part.sha256))
        paths = tuple(self._store.blob(digest) for digest in digests)
        entry = create(
            self._store,
            name,
            Modelfile(paths),
            self._store.root,
            lambda status: self._report(Progress(status)),
            {_PARTS: digests},
        )
        self._store.drop(layers)
        return entry

    def _find_kept(self, name: ModelName, digests: list[str]) -> Entry | None:
        """Return the model if an earlier pull made it from the same parts."""
        try:
            entry = self._store.entry(name)
        except ModelNotFound:
            return None
        whole = all(map(self._store.has, entry.manifest.blobs))
        return entry if whole and read_config(self._store, entry).get(_PARTS) == digests else None

    def _page(self, client: httpx2.Client, name: ModelName, url: str) -> tuple[bytes, str]:
        """Return a page of a repository's list of files, and the URL of the next one."""
        for attempt in range(TRIES):
            try:
                with client.stream("GET", url) as response:
                    _require_there(response, name)
                    following = response.links.get("next", {}).get("url", "")
                    body = _read_limited(response)
                return body, str(response.url.join(following)) if following else ""
            except httpx2.HTTPError as error:
                require_tls(error, name)
                self._pause(attempt, url, error)
        # The last pause raises.
        raise AssertionError

    def _manifest(self, client: httpx2.Client, name: ModelName) -> Manifest:
        url = f"{registry_url(name)}/manifests/{name.tag}"
        headers = {"Accept": MANIFEST_TYPE, "Accept-Encoding": "identity"}
        for attempt in range(TRIES):
            try:
                with client.stream("GET", url, headers=headers) as response:
                    _require_there(response, name)
                    return parse_manifest(_read_limited(response), url)
            except httpx2.HTTPError as error:
                require_tls(error, name)
                if attempt < TRIES - 1:
                    self._report(Progress(f"{name.host}: {error}; trying again"))
                self._pause(attempt, url, error)
        # The last pause raises.
        raise AssertionError

    def _missing(self, layer: Layer) -> int:
        """Return the bytes of a blob that are still missing."""
        if self._store.has(layer):
            return 0
        kept = kept_parts(self._store.blob(layer.digest), layer.size) or []
        return layer.size - sum(part.completed for part in kept)

    def _require_allowed(self, request: httpx2.Request) -> None:
        """Refuse unencrypted requests, even after a redirect."""
        if request.url.scheme == "http" and not self._insecure:
            raise StoreError(f"{request.url}: http is not encrypted; --insecure allows it")

    def _pause(self, attempt: int, url: str, error: Exception) -> None:
        if attempt >= TRIES - 1:
            reason = str(error) or type(error).__name__
            raise RegistryFailed(f"{url}: {reason}, after {TRIES} tries") from error
        # Short sleeps, so that a cancelled pull does not last up to 30 seconds longer.
        for _ in range(round(min(2.0**attempt, 30.0) / _LOOK_SECONDS)):
            self._check()
            self._wait(_LOOK_SECONDS)

    def _check(self) -> None:
        if self._cancelled():
            raise PullCancelled("the pull was cancelled")

    def _blob(self, client: httpx2.Client, url: str, layer: Layer, *, checked: bool = True) -> None:
        path = self._store.blob(layer.digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Lock files are never removed: another process may wait for one.
        locks = self._store.root / ".locks"
        locks.mkdir(exist_ok=True)
        with self._alone(FileLock(locks / path.name)):
            if self._store.has(layer):
                # Parts of a pull that was killed after it had all of them.
                forget(path)
            else:
                try:
                    self._fetch(client, url, layer, path, self._part_sizes, checked)
                except _NoRanges:
                    forget(path)
                    whole = layer.size or 1
                    self._fetch(client, url, layer, path, (whole, whole), checked)
            self._report_blob(layer, layer.size)

    @contextmanager
    def _alone(self, lock: FileLock) -> Generator[None]:
        """Hold a lock; waiting for another pull of the same blob can be cancelled."""
        while True:
            try:
                lock.acquire(timeout=_LOOK_SECONDS)
                break
            except Timeout:
                self._check()
        try:
            yield
        finally:
            lock.release()

    def _report_blob(self, layer: Layer, completed: int) -> None:
        with self._lock:
            # Threads of several parts report, and a caller need not be safe for that.
            short = digest_hex(layer.digest)[:12]
            self._report(Progress(f"pulling {short}", layer.digest, layer.size, completed))

    def _fetch(
        self,
        client: httpx2.Client,
        url: str,
        layer: Layer,
        path: Path,
        part_sizes: tuple[int, int],
        checked: bool,
    ) -> None:
        partial = partial_path(path)
        parts = plan_parts(path, layer.size, part_sizes)
        with partial.open("r+b" if partial.exists() else "w+b") as file:
            # Full length from the beginning: threads write their parts in any order, each at its
            # place.
            file.truncate(layer.size)
        self._all(client, url, layer, partial, parts)
        self._report(Progress("verifying sha256 digest", layer.digest, layer.size, layer.size))
        found = sha256(partial) if checked else digest_hex(layer.digest)
        if found != digest_hex(layer.digest):
            forget(path)
            raise StoreError(f"{url}: its SHA-256 is {found}, the manifest has {layer.digest}")
        settle(partial, path)
        # Last: without notes the parts would be fetched again.
        forget(path)

    def _all(
        self,
        client: httpx2.Client,
        url: str,
        layer: Layer,
        partial: Path,
        parts: list[Part],
    ) -> None:
        streams = _Streams()

        def fetch(part: Part) -> None:
            attempt = 0
            while part.completed < part.size and not streams.stopped:
                before = part.completed
                try:
                    self._part(client, url, partial, part, streams, done)
                except httpx2.HTTPError as error:
                    if streams.stopped:
                        return
                    # Progress resets the count, so that a flaky connection still gets the blob.
                    attempt = 0 if part.completed > before else attempt
                    self._pause(attempt, url, error)
                    attempt += 1

        def done() -> None:
            self._report_blob(layer, sum(part.completed for part in parts))

        with ThreadPoolExecutor(self._streams) as pool:
            jobs = {pool.submit(fetch, part) for part in parts}
            try:
                while jobs:
                    over, jobs = wait(jobs, _LOOK_SECONDS, FIRST_COMPLETED)
                    for job in over:
                        job.result()
                    self._check()
            finally:
                # Otherwise the pool waits for threads that wait for bytes.
                streams.stop()

    def _part(
        self,
        client: httpx2.Client,
        url: str,
        partial: Path,
        part: Part,
        streams: _Streams,
        done: Callable[[], None],
    ) -> None:
        start, last = part.offset + part.completed, part.offset + part.size - 1
        # Ranges and digests are of the file's own bytes, not of compressed ones.
        headers = {"Range": f"bytes={start}-{last}", "Accept-Encoding": "identity"}
        with client.stream("GET", url, headers=headers) as response, partial.open("r+b") as file:
            _require_range(response, start, part)
            file.seek(start)
            try:
                with streams.of(response):
                    self._copy(response, file, part, streams, done)
            finally:
                file.flush()
                part.save()
        if part.completed < part.size and not streams.stopped:
            raise httpx2.ReadError(f"ended after {part.completed} of {part.size} bytes")

    def _copy(
        self,
        response: httpx2.Response,
        file: BinaryIO,
        part: Part,
        streams: _Streams,
        done: Callable[[], None],
    ) -> None:
        """Write chunks as they arrive, so that a broken connection loses nothing."""
        reported = part.completed
        for chunk in response.iter_raw():
            if streams.stopped:
                return
            self._check()
            self._write(file, part, chunk)
            whole = part.completed == part.size
            if whole or part.completed - reported >= _REPORT_EVERY:
                reported = part.completed
                done()
            if whole:
                return

    def _write(self, file: BinaryIO, part: Part, chunk: bytes) -> None:
        # A server may send more than was requested.
        kept = chunk[: part.size - part.completed]
        file.write(kept)
        before = part.completed // _SAVED_EVERY
        part.completed += len(kept)
        if part.completed // _SAVED_EVERY != before:
            file.flush()
            part.save()


class _Streams:
    """The connections of a blob's parts, which end together even if one waits for bytes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.stopped = False

    @contextmanager
    def of(self, response: httpx2.Response) -> Generator[None]:
        """Register the connection of a response while it is read."""
        own = _own_handle(response)
        with self._lock:
            self._open.add(own)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(own)
            own.close()

    def stop(self) -> None:
        """Shut down all connections."""
        with self._lock:
            self.stopped = True
            for each in self._open:
                # The server may have closed it first.
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)


def _own_handle(response: httpx2.Response) -> socket.socket:
    """Duplicate the response's socket, so that it can be shut down from another thread."""
    found: socket.socket = response.extensions["network_stream"].get_extra_info("socket")
    return socket.fromfd(found.fileno(), found.family, found.type)


def registry_url(name: ModelName) -> str:
    """Return the URL of a model in a registry."""
    return f"{name.scheme}://{name.host}/v2/{name.namespace}/{name.model}"


def _own_digest(part: HubFile) -> str:
    """Return a temporary digest for a file without a known SHA-256, while its parts are fetched."""
    return hashlib.sha256(f"{part.path} {part.size}".encode()).hexdigest()


def require_tls(error: Exception, name: ModelName, command: str = "pull") -> None:
    """Raise if a registry failed at TLS, which a retry does not solve."""
    if "WRONG_VERSION_NUMBER" in str(error) or "record layer failure" in str(error).lower():
        raise RegistryFailed(
            f"{name.host} does not speak https; for a registry without encryption: "
            f"{command} --insecure http://{name}"
        ) from error
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        raise RegistryFailed(f"{name.host}: its certificate is not trusted: {error}") from error


def _require_there(response: httpx2.Response, name: ModelName) -> None:
    """Raise unless a response has a manifest."""
    status = response.status_code
    if status in _BUSY:
        raise httpx2.ReadError(f"HTTP status {status}, needs 200")
    if status in (400, 404):
        raise ModelNotFound(f"{name}: {name.host} has no such model")
    if status in (401, 403):
        reason = f"{name.host} has no such model, or not for everybody (HTTP status {status})"
        raise ModelNotFound(f"{name}: {reason}")
    if status != 200:
        raise RegistryFailed(f"{response.url}: HTTP status {status}, needs 200")


def _read_limited(response: httpx2.Response) -> bytes:
    """Read at most a manifest's size: a small response may unpack to gigabytes."""
    data = b""
    for chunk in response.iter_bytes():
        data += chunk
        if len(data) > MAX_NBYTES:
            raise StoreError(f"{response.url}: a manifest of over {MAX_NBYTES} bytes")
    return data


def _require_range(response: httpx2.Response, start: int, part: Part) -> None:
    """Raise unless a response has the requested part."""
    status = response.status_code
    # The whole file is the requested part if it is as long as that.
    if status == 200 and start == 0:
        length = response.headers.get("Content-Length")
        if length is None or length == str(part.size):
            return
    if status == 200:
        raise _NoRanges
    if status in _REFUSED:
        raise StoreError(f"{response.url}: HTTP status {status}")
    found = response.headers.get("Content-Range", "")
    if status != 206 or not found.startswith(f"bytes {start}-"):
        raise httpx2.ReadError(f"HTTP status {status}, range {found!r}, needs 206 from {start}")


# Split GGUF files on Hugging Face, for which its registry has no manifests.
#
# The Hub lists the files of a repository at ``/api/models/OWNER/REPO/tree/main``, with the SHA-256
# of each, and serves them at ``/OWNER/REPO/resolve/main/FILE``.


# The Hub's choice for `latest`.
_DEFAULT = "Q4_K_M"
# Maximum number of pages of a listing.
_PAGES = 100


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository.

    Parameters
    ----------
    path : str
        Path in the repository.
    size : int
        Number of bytes.
    sha256 : str
        Digest of its bytes; empty if the Hub does not list it.
    """

    path: str
    size: int
    sha256: str


def tree_url(name: ModelName) -> str:
    """Return the URL of a repository's list of files."""
    repository = f"{name.namespace}/{name.model}"
    return f"{name.scheme}://{name.host}/api/models/{repository}/tree/main?recursive=true"


def file_url(name: ModelName, file: HubFile) -> str:
    """Return the URL of a file of a repository."""
    path = f"{name.namespace}/{name.model}/resolve/main/{quote(file.path)}"
    return f"{name.scheme}://{name.host}/{path}"


def list_files(first: str, page: Callable[[str], tuple[bytes, str]]) -> list[HubFile]:
    """List the files of a repository.

    Parameters
    ----------
    first : str
        URL of the first page.
    page : callable
        Returns the body of a page, and the URL of the next one or "".
    """
    found: list[HubFile] = []
    url = first
    for _ in range(_PAGES):
        body, url = page(url)
        found += _files(body)
        if not url:
            break
    return found


def _files(body: bytes) -> Iterator[HubFile]:
    try:
        value: object = json.loads(body)
    except (ValueError, RecursionError):
        return
    for each in cast("list[Any]", value if isinstance(value, list) else []):
        given = cast("dict[str, Any]", each if isinstance(each, dict) else {})
        path, size, lfs = given.get("path"), given.get("size"), given.get("lfs")
        if isinstance(path, str) and isinstance(size, int) and size > 0:
            digest = cast("dict[str, Any]", lfs).get("oid") if isinstance(lfs, dict) else ""
            known = isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest)
            yield HubFile(path, size, str(digest) if known else "")


def find_parts(files: list[HubFile], name: ModelName) -> list[HubFile]:
    """Return the parts of the split file that a tag stands for, in order, or none.

    Raises
    ------
    ModelNotFound
        The repository has only some of its parts; the message names the others.
    """
    sets: dict[tuple[str, int], dict[int, HubFile]] = {}
    for file in files:
        found = PART_NAME.fullmatch(file.path)
        # Repositories have image projectors under such names, besides the language model.
        if found and "mmproj" not in found[1].rpartition("/")[2].lower():
            sets.setdefault((found[1], int(found[3])), {})[int(found[2])] = file
    tags = [_DEFAULT, ""] if name.tag == "latest" else [name.tag]
    for tag in tags:
        for (stem, count), parts in sorted(sets.items(), key=lambda each: (len(each[0][0]), each)):
            if _matches_tag(tag, stem):
                return _require_all(name, stem, count, parts)
    return []


def _matches_tag(tag: str, stem: str) -> bool:
    """Return whether a file, without the number of the part, matches a tag."""
    ends = re.search(rf"(^|[-._/]){re.escape(tag)}$", stem, re.IGNORECASE)
    folders = stem.lower().split("/")[:-1]
    return not tag or ends is not None or tag.lower() in folders


def _require_all(
    name: ModelName, stem: str, count: int, parts: dict[int, HubFile]
) -> list[HubFile]:
    missing = [f"{stem}-{n:05}-of-{count:05}.gguf" for n in range(1, count + 1) if n not in parts]
    if missing:
        raise ModelNotFound(f"{name}: {name.host} has no {', '.join(missing[:9])}")
    return [parts[number] for number in range(1, count + 1)]
