"""Files that a user names: the model, by its path or its name, and where results go."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import BinaryIO

from wgpu_backend.cli.failures import UsageError, message_of
from wgpu_backend.errors import GGUFError
from wgpu_backend.file_bytes import FileBytes

BUNDLED = Path(str(files("wgpu_backend"))) / "bundled" / "story.gguf"
STORY = "story"


def known_model(name: str) -> bool:
    """Whether a word names a model: the bundled one, a file, or what can only be meant as one."""
    return name == STORY or name.endswith(".gguf") or _exists(name)


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # too long for a path, or with a NUL: a prompt
        return False


def model_path(name: str) -> Path:
    """File of a model that a user named.

    Raises
    ------
    UsageError
        It is not there, no regular file, or not readable.
    """
    path = BUNDLED if name == STORY else Path(name)
    try:
        FileBytes(path).close()
    except GGUFError as error:
        raise UsageError(message_of(error)) from None
    return path


def save(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a result to a file, and take away what there is of it where the disk is full.

    Parameters
    ----------
    path : Path
    write : callable
        Given the open file.

    Raises
    ------
    OSError
        It cannot be written; names the file, which a failed write alone does not.
    """
    try:
        with path.open("wb") as file:
            write(file)
    except OSError as error:
        if path.is_file():  # and no device or pipe
            path.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from error


def writable(path: Path) -> Path:
    """File that a result goes to, checked before the work that makes it.

    Raises
    ------
    UsageError
        Its folder is not there, or it cannot be written.
    """
    if not path.parent.is_dir():
        raise UsageError(f"{path}: no such folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{path}: may not be written")
    return path
