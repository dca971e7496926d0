"""A cache of facts about devices: JSON files in the user's cache folder, perhaps damaged."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast
from uuid import uuid4

from platformdirs import user_cache_path

# Devices in a file. Drivers and shaders are part of the key, so old entries would pile up.
DEVICES_KEPT = 64


def cache_file(name: str) -> Path | None:
    """Return the path of a file in the platform's cache folder.

    Where that is Linux's, ``XDG_CACHE_HOME`` counts.

    Returns
    -------
    Path or None
        None for a user without a home, as containers have them.
    """
    folder = user_cache_path("wgpu-backend", appauthor=False)
    return folder / name if folder.is_absolute() else None


def read(path: Path | None) -> dict[str, object]:
    """Read a file's entries by device; none if it is missing, damaged, or not readable."""
    try:
        found: object = json.loads(path.read_text(encoding="utf-8")) if path else None
    except (OSError, ValueError, RecursionError):
        return {}
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}


def write(path: Path | None, entries: Mapping[str, object]) -> Path:
    """Write a file with the latest entries, atomically.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    OSError
        It cannot be written; names the file.
    """
    if path is None:
        raise FileNotFoundError(2, "no home folder for the cache; set HOME")
    # A name of its own, since another process may write at the same time; the rename is atomic.
    part = path.with_name(f"{path.name}.{uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(dict([*entries.items()][-DEVICES_KEPT:])), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        _take_away(part)
        raise OSError(error.errno, error.strerror, str(path)) from error
    return path


@contextmanager
def one_process_at_a_time(path: Path | None, seconds: float) -> Generator[None]:
    """Wait for the other processes and threads that make an entry of a file.

    Parameters
    ----------
    path : Path or None
        The file; without one nothing is waited for.
    seconds : float
        Longest wait. After it, and where the folder allows no lock, the block runs all the same.
    """
    # Only the first use of a device needs it.
    from filelock import FileLock

    lock = FileLock(path.with_name(f"{path.name}.lock"), timeout=seconds) if path else None
    try:
        if path and lock:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
    # A timeout is an OSError too. Some network file systems have no locks.
    except (OSError, NotImplementedError):
        lock = None
    try:
        yield
    finally:
        if lock:
            lock.release()


def _take_away(part: Path) -> None:
    try:
        part.unlink(missing_ok=True)
    # Nothing was written where nothing may be written.
    except OSError:
        return
