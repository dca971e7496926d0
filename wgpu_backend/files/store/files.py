"""Atomic files, which are complete or absent whenever the process or the machine stops.

Parts of a file that is being fetched are at the end.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

CHUNK = 1 << 20
DRAFT = ".new-"
# Seconds after which an unchanged draft is taken to be a killed process's.
ABANDONED = 3600
ProgressCallback = Callable[[int], None]
"""A callback for the number of bytes processed since the last call."""


@contextmanager
def draft(folder: Path) -> Generator[tuple[BinaryIO, Path]]:
    """Open a temporary file; it is deleted unless `settle` gives it its final name."""
    folder.mkdir(parents=True, exist_ok=True)
    sweep(folder)
    # Not from `tempfile`, whose files only their user can read: users may share a store.
    path = folder / f"{DRAFT}{secrets.token_hex(8)}"
    try:
        with path.open("xb") as file:
            yield file, path
    finally:
        path.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove the files that killed processes left in a folder."""
    for path in folder.glob(f"{DRAFT}*"):
        try:
            if time.time() - path.stat().st_mtime > ABANDONED:
                path.unlink()
        except OSError:
            # Another process was faster, or it is another user's file.
            continue


def replace(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write a file atomically; only its user can read a private one."""
    with draft(path.parent) as (file, written):
        if private:
            written.chmod(0o600)
        file.write(data)
        file.close()
        settle(written, path)


def settle(written: Path, path: Path) -> None:
    """Give a closed file its final name, once all of it is on the disk."""
    with written.open("r+b") as file:
        # Before the rename: otherwise a power cut could leave the final name without its bytes.
        os.fsync(file.fileno())
    written.replace(path)
    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError:
        # Windows cannot open folders.
        return
    try:
        # The rename lasts only once the folder is on the disk as well.
        os.fsync(folder)
    finally:
        os.close(folder)


def read_file(path: Path, most: int) -> bytes:
    """Return at most `most` bytes of a file; a pipe, which could block, is rejected.

    Raises
    ------
    OSError
        It cannot be read, or is not a regular file.
    """
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file")
        return opened.read(most)


def sha256(path: Path, report: ProgressCallback = lambda _: None) -> str:
    """Return the hexadecimal digest of a file."""
    made = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            made.update(chunk)
            report(len(chunk))
    return made.hexdigest()


# Parts of a blob that is being fetched, kept as Ollama does: a file, and a note for each part.


# Number of parts of a blob, unless they would be too small or too large.
# Ollama makes as many.
PARTS = 16


@dataclass(slots=True)
class Part:
    """A part of a blob, and its progress.

    Parameters
    ----------
    number : int
        Number of the part, from 0.
    offset, size : int
        Bytes of the blob.
    completed : int
        Number of bytes on the disk.
    note : Path
        The file that records this.
    """

    number: int
    offset: int
    size: int
    completed: int
    note: Path

    def save(self) -> None:
        """Record the progress."""
        # Ollama's names of the fields: it may resume this pull.
        fields = {
            "N": self.number,
            "Offset": self.offset,
            "Size": self.size,
            "Completed": self.completed,
        }
        replace(self.note, json.dumps(fields).encode())


def partial_path(path: Path) -> Path:
    """Return the path of a blob that is not complete."""
    return path.with_name(f"{path.name}-partial")


def _notes(path: Path) -> Iterator[Path]:
    return path.parent.glob(f"{path.name}-partial-*")


def forget(path: Path) -> None:
    """Remove the parts of a blob and their notes."""
    partial_path(path).unlink(missing_ok=True)
    for note in _notes(path):
        note.unlink()


def plan_parts(path: Path, size: int, part_sizes: tuple[int, int]) -> list[Part]:
    """Return the parts of a blob, from an earlier pull or new ones.

    Parameters
    ----------
    path : Path
        Path of the blob.
    size : int
        Number of bytes.
    part_sizes : pair of int
        Smallest and largest part.
    """
    kept = kept_parts(path, size)
    if kept is not None:
        return kept
    forget(path)
    smallest, largest = part_sizes
    each = min(max(-(-size // PARTS), smallest), largest)
    parts = [
        Part(i, at, min(each, size - at), 0, path.with_name(f"{path.name}-partial-{i}"))
        for i, at in enumerate(range(0, size, each))
    ]
    for part in parts:
        part.save()
    return parts


def kept_parts(path: Path, size: int) -> list[Part] | None:
    """Return the parts of an earlier pull, or None if they do not cover the blob."""
    found: list[Part] = []
    try:
        for note in _notes(path):
            value = json.loads(note.read_text())
            found.append(Part(value["N"], value["Offset"], value["Size"], value["Completed"], note))
        # A folder lists its files in any order, and by name 10 would come before 2.
        found.sort(key=lambda part: part.offset)
        at = 0
        for part in found:
            if part.offset != at or not 0 <= part.completed <= part.size:
                return None
            at += part.size
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if found and at == size and partial_path(path).exists() else None
