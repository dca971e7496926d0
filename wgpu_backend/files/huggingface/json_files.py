"""JSON out of files that anybody may have written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from wgpu_backend.errors import GGUFError, ModelError
from wgpu_backend.files.gguf.file_bytes import FileBytes

_MAX_NBYTES = 256 << 20  # vocabularies of a million tokens have a tenth of that


def parsed(raw: bytes, subject: str) -> dict[str, Any]:
    """Object that bytes of JSON hold.

    Parameters
    ----------
    raw : bytes
    subject : str
        Begins the message.

    Raises
    ------
    ModelError
        They are no JSON, nothing but an object, or have a key twice.
    """
    try:
        made: object = json.loads(raw, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{subject}: no JSON: {str(error)[:120]}") from None
    if not isinstance(made, dict):
        raise ModelError(f"{subject}: JSON of another kind, needs an object")
    return cast("dict[str, Any]", made)


def read_json(path: Path) -> dict[str, Any]:
    """Object that a file holds; raises as `parsed` does, or where the file cannot be read."""
    return parsed(read_bytes(path), str(path))


def read_bytes(path: Path) -> bytes:
    """All of a small file.

    Raises
    ------
    ModelError
        It is not there, cannot be read or is too large.
    """
    try:
        file = FileBytes(path)
    except GGUFError as error:
        raise ModelError(str(error)) from None
    try:
        if file.nbytes > _MAX_NBYTES:
            raise ModelError(f"{path}: {file.nbytes} bytes, at most {_MAX_NBYTES}")
        return file.read("text", 0, file.nbytes)
    finally:
        file.close()


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise ValueError(f"key {key[:80]!r} is there twice")
        made[key] = value
    return made
