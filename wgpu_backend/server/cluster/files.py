"""Copies of a model's files on the nodes of a cluster, found by their digest."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

_BLOB = re.compile(r"sha256-([0-9a-f]{64})")
_PIECE = 1 << 20


@lru_cache(256)
def _digest(path: str, size: int, changed: int) -> str:
    found = hashlib.sha256()
    with Path(path).open("rb") as file:
        while piece := file.read(_PIECE):
            found.update(piece)
    return found.hexdigest()


def digest_file(path: str) -> str:
    """Return the SHA-256 of a file; for a blob of a store, read it from the name."""
    named = _BLOB.fullmatch(Path(path).name)
    if named is not None:
        return named[1]
    facts = Path(path).stat()
    return _digest(path, facts.st_size, facts.st_mtime_ns)


def find_copy(path: str, digest: str, folders: Sequence[Path]) -> str | None:
    """Return this machine's copy of another machine's file.

    Parameters
    ----------
    path : str
        Path of the file on the other machine; a file at the same path counts if it is the same.
    digest : str
        SHA-256 of the file, in hexadecimal.
    folders : sequence of Path
        Folders with blobs of a store (``sha256-…``), or with files of the same name.
    """
    blobs = (folder / f"sha256-{digest}" for folder in folders)
    same = (folder / Path(path).name for folder in folders)
    for each in (*blobs, Path(path), *same):
        if each.is_file() and digest_file(str(each)) == digest:
            return str(each)
    return None
