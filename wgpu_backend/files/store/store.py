"""A folder of models in Ollama's layout: manifests by name, blobs by digest."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import re
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock

from wgpu_backend.errors import ModelNotFound, StoreError
from wgpu_backend.files.store.files import (
    ABANDONED,
    CHUNK,
    ProgressCallback,
    draft,
    read_file,
    replace,
    settle,
)
from wgpu_backend.files.store.manifest import (
    LAYER_TYPE,
    MAX_NBYTES,
    Layer,
    Manifest,
    digest_hex,
    parse_manifest,
)
from wgpu_backend.files.store.names import ModelName

_LOG = logging.getLogger("wgpu_backend.model_store")


class BlobMissing(StoreError):
    """A blob of a manifest that is missing, or incomplete."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of a store.

    Parameters
    ----------
    name : ModelName
        Name of the model.
    manifest : Manifest
        Its manifest.
    digest : str
        SHA-256 of the manifest, 64 digits.
    modified : float
        Seconds since 1970.
    """

    name: ModelName
    manifest: Manifest
    digest: str
    modified: float


class Store:
    """Models in a folder, which may be Ollama's own.

    A manifest is written after all its blobs, and deleted before them. So whenever a process ends,
    each listed model is complete.

    Parameters
    ----------
    root : Path
        Folder with ``manifests`` and ``blobs``; created with the first model.
    read_only : bool
        Whether to reject changes.
    """

    def __init__(self, root: Path, *, read_only: bool = False) -> None:
        self.root = root
        self.read_only = read_only

    def blob(self, digest: str) -> Path:
        """Return the path of a blob, which may not exist.

        Raises
        ------
        StoreError
            It is not a digest.
        """
        return self.root / "blobs" / f"sha256-{digest_hex(digest)}"

    def has(self, layer: Layer) -> bool:
        """Return whether a blob exists with the right size."""
        try:
            facts = self.blob(layer.digest).stat()
        except OSError:
            return False
        return stat.S_ISREG(facts.st_mode) and facts.st_size == layer.size

    def _manifest(self, name: ModelName) -> Path:
        return self.root / "manifests" / name.path

    def changing(self) -> AbstractContextManager[object]:
        """Lock out other processes while manifests change.

        Raises
        ------
        StoreError
            The store is read-only.
        """
        self.require_writable()
        self.root.mkdir(parents=True, exist_ok=True)
        return FileLock(self.root / ".wgpu-backend.lock")

    def entry(self, name: ModelName) -> Entry:
        """Return a model by its name.

        Raises
        ------
        ModelNotFound
            There is no such model.
        StoreError
            Its manifest is damaged, or not readable for this user.
        """
        path = self._manifest(name)
        try:
            data = read_file(path, MAX_NBYTES + 1)
            modified = path.stat().st_mtime
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise ModelNotFound(f"model {str(name)!r} not found") from None
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {error.strerror}") from None
        manifest = parse_manifest(data, str(path))
        return Entry(name, manifest, hashlib.sha256(data).hexdigest(), modified)

    def names(self) -> list[ModelName]:
        """Return the names of all models, sorted; other files are skipped."""
        found: list[ModelName] = []
        base = self.root / "manifests"
        for path in base.glob("*/*/*/*"):
            host, namespace, model, tag = path.relative_to(base).parts
            try:
                found.append(ModelName.parse(f"{host}/{namespace}/{model}:{tag}"))
            except StoreError:
                continue
        return sorted(found, key=str)

    def existing(self, name: ModelName) -> ModelName:
        """Return the name of an existing model, which may differ in letter case.

        This is as in Ollama; an unknown model keeps its name.
        """
        wanted = str(name.path)
        there = {str(each.path): each for each in self.names()}
        if wanted in there:
            return name
        folded = {path.casefold(): each for path, each in there.items()}
        found = folded.get(wanted.casefold())
        return name if found is None else dataclasses.replace(found, scheme=name.scheme)

    def entries(self) -> Iterator[Entry]:
        """Yield all models with a readable manifest, the latest first; log a warning for others."""
        found: list[Entry] = []
        for name in self.names():
            try:
                found.append(self.entry(name))
            except ModelNotFound:
                # Removed meanwhile.
                continue
            except StoreError as error:
                _LOG.warning("%s is left out: %s", name, error)
        yield from sorted(found, key=lambda entry: -entry.modified)

    def put(self, name: ModelName, manifest: Manifest) -> Entry:
        """Give a model a name, and delete the blobs that this leaves unused.

        Raises
        ------
        StoreError
            A blob is missing, or the store is read-only.
        """
        with self.changing():
            for layer in manifest.blobs:
                # Checked under the lock: another process may have removed a blob that nothing named
                # yet.
                if not self.has(layer):
                    raise BlobMissing(f"{name}: blob {layer.digest} is missing or has another size")
            before = self._list_blobs(name)
            replace(self._manifest(name), manifest.encode())
            # After the new manifest is written, so that shared blobs are still named.
            self._drop(before)
            return self.entry(name)

    def copy(self, source: ModelName, destination: ModelName) -> None:
        """Give a model a second name.

        Raises
        ------
        ModelNotFound, StoreError
        """
        self.put(destination, self.entry(source).manifest)

    def remove(self, name: ModelName) -> None:
        """Remove a name, and the blobs that no other model uses.

        Raises
        ------
        ModelNotFound, StoreError
        """
        with self.changing():
            path = self._manifest(name)
            if not path.is_file():
                raise ModelNotFound(f"model {str(name)!r} not found")
            blobs = self._list_blobs(name)
            path.unlink()
            # Empty folders of model, namespace and host go, too, as in Ollama.
            for folder in path.parents[:3]:
                if any(folder.iterdir()):
                    break
                folder.rmdir()
            self._drop(blobs)

    def drop(self, layers: Iterable[Layer]) -> None:
        """Remove blobs that no model uses."""
        with self.changing():
            self._drop({layer.digest for layer in layers})

    def _list_blobs(self, name: ModelName) -> set[str]:
        try:
            return {layer.digest for layer in self.entry(name).manifest.blobs}
        except StoreError:
            # Missing or damaged: then its blobs are unknown.
            return set()

    def _drop(self, digests: set[str]) -> None:
        """Remove blobs that no manifest names; none if a manifest cannot be read."""
        try:
            named = named_digests(self.root) if digests else set[str]()
        except StoreError:
            return
        for digest in digests:
            if digest_hex(digest) not in named:
                self.blob(digest).unlink(missing_ok=True)

    def add_bytes(self, kind: str, data: bytes) -> Layer:
        """Store a blob."""
        self.require_writable()
        digest = hashlib.sha256(data).hexdigest()
        layer = Layer(kind if "/" in kind else LAYER_TYPE + kind, f"sha256:{digest}", len(data))
        if not self.has(layer):
            replace(self.blob(layer.digest), data)
        return layer

    def add_file(self, kind: str, path: Path, report: ProgressCallback = lambda _: None) -> Layer:
        """Store a copy of a file as a blob.

        Raises
        ------
        StoreError
            The disk has no room for it, or the store is read-only.
        """
        with path.open("rb") as source:
            return self.add_stream(kind, source, path.stat().st_size, report)

    def add_stream(
        self, kind: str, source: BinaryIO, size: int, report: ProgressCallback = lambda _: None
    ) -> Layer:
        """Store the rest of an open file as a blob; `size` is its expected size in bytes."""
        return self.add_pieces(kind, iter(lambda: source.read(CHUNK), b""), size, report)

    def add_pieces(
        self,
        kind: str,
        pieces: Iterable[bytes | memoryview],
        size: int,
        report: ProgressCallback = lambda _: None,
    ) -> Layer:
        """Store pieces in sequence as a blob; see `add_stream`."""
        self.require_writable()
        require_room(self.root, size)
        made, total = hashlib.sha256(), 0
        with draft(self.root / "blobs") as (file, written):
            for chunk in pieces:
                file.write(chunk)
                made.update(chunk)
                total += len(chunk)
                report(len(chunk))
            file.close()
            layer = Layer(LAYER_TYPE + kind, f"sha256:{made.hexdigest()}", total)
            settle(written, self.blob(layer.digest))
        return layer

    def require_writable(self) -> None:
        """Raise if the store is read-only.

        Raises
        ------
        StoreError
        """
        if self.read_only:
            raise StoreError(f"{self.root}: the store is read-only")


def free_bytes(folder: Path) -> int:
    """Return the free bytes on the disk of a folder, which may not exist yet."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    return shutil.disk_usage(there).free


def require_room(folder: Path, nbytes: int) -> None:
    """Raise if the disk has no room.

    Raises
    ------
    StoreError
        The message has both numbers.
    """
    free = free_bytes(folder)
    if free < nbytes:
        raise StoreError(f"{folder}: {nbytes} bytes are needed, the disk has {free} free")


_BLOB = re.compile(r"sha256-([0-9a-f]{64})")
_DIGEST = re.compile(rb"sha256[:-]([0-9a-fA-F]{64})")
_FOLDERS = {"blobs", "manifests"}


def prune(store: Store) -> int:
    """Remove blobs that no manifest of any registry names, and that are older than an hour.

    Nothing is removed in case of doubt: a manifest cannot be read, there is none, or there is an
    unknown folder; nor while a model is being fetched, whose manifest comes last.

    Parameters
    ----------
    store : Store
        The store to clean.

    Returns
    -------
    int
        Number of removed blobs.

    Raises
    ------
    StoreError
        A manifest cannot be read, or the store is read-only.
    """
    store.require_writable()
    if not (store.root / "blobs").is_dir() or _has_others(store.root):
        return 0
    with store.changing():
        named, blobs = named_digests(store.root), list((store.root / "blobs").iterdir())
        # No manifest at all may mean that their folder is not mounted.
        if not named or any(map(_is_incoming, blobs)):
            return 0
        return sum(_remove_if_unused(blob, named) for blob in blobs)


def named_digests(root: Path) -> set[str]:
    """Return all digests, 64 digits each, in all manifests of a store.

    Raises
    ------
    StoreError
        A file or a folder of them cannot be read, or is not a manifest.
    """
    found: set[str] = set()
    for folder, _, names in os.walk(root / "manifests", onerror=_refuse, followlinks=True):
        for name in names:
            # Hidden files are drafts, and notes of file managers.
            if not name.startswith("."):
                found |= _named_by(Path(folder, name))
    return found


def _refuse(error: OSError) -> None:
    # A missing folder is fine: there is none yet, or it was removed meanwhile.
    if not isinstance(error, FileNotFoundError):
        raise StoreError(f"{error.filename}: cannot be read: {error.strerror}") from None


def _named_by(path: Path) -> set[str]:
    try:
        data = read_file(path, MAX_NBYTES + 1)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from None
    parse_manifest(data, str(path))
    # All of the text is searched, not only known keys: a field of a later version may name a blob.
    return {digest.decode().lower() for digest in _DIGEST.findall(data)}


def _has_others(root: Path) -> bool:
    """Return whether a store has unknown folders, whose files may name blobs, too."""
    entries = (each for each in root.iterdir() if not each.name.startswith("."))
    return any(each.name not in _FOLDERS for each in entries)


def _is_incoming(path: Path) -> bool:
    """Return whether a file is part of a blob that is being fetched."""
    return _BLOB.fullmatch(path.name) is None and not _is_old(path)


def _is_old(path: Path) -> bool:
    """Return whether the last write or rename of a file is over an hour ago."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        # It was renamed meanwhile.
        return False
    # A rename keeps the time of writing and changes that of the inode.
    return time.time() - max(facts.st_mtime, facts.st_ctime) > ABANDONED


def _remove_if_unused(path: Path, named: set[str]) -> bool:
    blob = _BLOB.fullmatch(path.name)
    if blob is None or blob[1] in named or not _is_old(path):
        return False
    # It may be open in another process, or another user's.
    with suppress(OSError):
        path.unlink()
        return True
    return False
