"""Atomic files, which are complete or absent whenever the process or the machine stops."""

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
        os.fsync(file.fileno())
    written.replace(path)
    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError:
        # Windows cannot open folders.
        return
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_file(path: Path, most: int) -> bytes:
    """Return the bytes of a file, at most so many; a pipe, which could block, is rejected.

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
