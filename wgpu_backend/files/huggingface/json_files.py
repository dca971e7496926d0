"""Reading of JSON from untrusted files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from wgpu_backend.errors import GGUFError, ModelError
from wgpu_backend.files.gguf.file_bytes import FileBytes

# Ten times the size of a vocabulary of a million tokens.
_MAX_NBYTES = 256 << 20


def parse_json(raw: bytes, subject: str) -> dict[str, Any]:
    """Parse a JSON object.

    Parameters
    ----------
    raw : bytes
        The JSON text.
    subject : str
        Start of the error message.

    Raises
    ------
    ModelError
        It is not JSON, not an object, or has a key twice.
    """
    try:
        made: object = json.loads(raw, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{subject}: not JSON: {str(error)[:120]}") from None
    if not isinstance(made, dict):
        raise ModelError(f"{subject}: not a JSON object")
    return cast("dict[str, Any]", made)


def read_json(path: Path) -> dict[str, Any]:
    """Read a file's JSON object; raises like `parse_json`, or if the file cannot be read."""
    return parse_json(read_bytes(path), str(path))


def read_bytes(path: Path) -> bytes:
    """Read all of a small file.

    Raises
    ------
    ModelError
        It is missing, cannot be read or is too large.
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
            raise ValueError(f"key {key[:80]!r} occurs twice")
        made[key] = value
    return made
