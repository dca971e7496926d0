"""Files that are there whole or not at all, whenever the process or the machine stops."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

CHUNK = 1 << 20
DRAFT = ".new-"
ABANDONED = 3600  # seconds since a draft was written to last: its process was killed
Told = Callable[[int], None]
"""Called with how many bytes were done since the last call."""


@contextmanager
def draft(folder: Path) -> Generator[tuple[BinaryIO, Path]]:
    """Open a file without a name of its own yet; it goes unless `settle` gives it one."""
    folder.mkdir(parents=True, exist_ok=True)
    sweep(folder)
    # Not of `tempfile`, whose files are their user's alone: other users may share a store.
    path = folder / f"{DRAFT}{secrets.token_hex(8)}"
    try:
        with path.open("xb") as file:
            yield file, path
    finally:
        path.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove what killed processes left in a folder."""
    for path in folder.glob(f"{DRAFT}*"):
        try:
            if time.time() - path.stat().st_mtime > ABANDONED:
                path.unlink()
        except OSError:  # another process was faster, or it is another user's
            continue


def replace(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write a file whole; a private one is read by its user alone."""
    with draft(path.parent) as (file, written):
        if private:
            written.chmod(0o600)
        file.write(data)
        file.close()
        settle(written, path)


def settle(written: Path, path: Path) -> None:
    """Give a closed file its name, when all of it is on the disk."""
    with written.open("r+b") as file:
        os.fsync(file.fileno())
    written.replace(path)
    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError:  # Windows opens no folders
        return
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_file(path: Path, most: int) -> bytes:
    """Bytes of a file, at most so many; a pipe, which would wait for a writer, is none.

    Raises
    ------
    OSError
        It cannot be read, or is no regular file.
    """
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "is no regular file")
        return opened.read(most)


def sha256(path: Path, told: Told = lambda _: None) -> str:
    """Hexadecimal digest of a file."""
    made = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            made.update(chunk)
            told(len(chunk))
    return made.hexdigest()
