"""Blobs that no model has: what processes that were killed, and unused uploads, leave."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from wgpu_backend.errors import StoreError
from wgpu_backend.files.store.files import ABANDONED, read_file
from wgpu_backend.files.store.manifest import MAX_NBYTES, parse_manifest

if TYPE_CHECKING:
    from wgpu_backend.files.store.store import Store

_BLOB = re.compile(r"sha256-([0-9a-f]{64})")
_DIGEST = re.compile(rb"sha256[:-]([0-9a-fA-F]{64})")
_FOLDERS = {"blobs", "manifests"}


def prune(store: Store) -> int:
    """Remove blobs that no manifest of any registry names, and that are older than an hour.

    Nothing goes where there is any doubt of what is named: a manifest cannot be read, there is
    none, or a folder that is not known here; nor while a model comes, whose manifest comes last.

    Parameters
    ----------
    store : Store

    Returns
    -------
    int
        How many went.

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
        if not named or any(map(_comes, blobs)):
            return 0
        return sum(_removed(blob, named) for blob in blobs)


def named_digests(root: Path) -> set[str]:
    """Digests, 64 digits each, that stand anywhere in any manifest of a store.

    Raises
    ------
    StoreError
        A file or a folder of them cannot be read, or is no manifest.
    """
    found: set[str] = set()
    for folder, _, names in os.walk(root / "manifests", onerror=_refuse, followlinks=True):
        for name in names:
            if not name.startswith("."):  # drafts, and notes of file managers
                found |= _named_by(Path(folder, name))
    return found


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # there is none yet, or it was removed since
        raise StoreError(f"{error.filename}: cannot be read: {error.strerror}") from None


def _named_by(path: Path) -> set[str]:
    try:
        data = read_file(path, MAX_NBYTES + 1)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from None
    parse_manifest(data, str(path))
    return {digest.decode().lower() for digest in _DIGEST.findall(data)}


def _has_others(root: Path) -> bool:
    """Whether a store has folders that are not known here, whose files may name blobs, too."""
    entries = (each for each in root.iterdir() if not each.name.startswith("."))
    return any(each.name not in _FOLDERS for each in entries)


def _comes(path: Path) -> bool:
    """Whether a file is part of a blob that somebody fetches."""
    return _BLOB.fullmatch(path.name) is None and not _is_old(path)


def _is_old(path: Path) -> bool:
    """Whether nobody wrote or renamed a file for an hour."""
    try:
        facts = path.stat()
    except FileNotFoundError:  # it has another name since
        return False
    return time.time() - max(facts.st_mtime, facts.st_ctime) > ABANDONED


def _removed(path: Path, named: set[str]) -> bool:
    blob = _BLOB.fullmatch(path.name)
    if blob is None or blob[1] in named or not _is_old(path):
        return False
    with suppress(OSError):  # somebody has it open, or it is another user's
        path.unlink()
        return True
    return False
