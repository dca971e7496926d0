"""Texts that options have: lists of words, and small files."""

from __future__ import annotations

from pathlib import Path

from wgpu_backend.cli.failures import UsageError, brief

_MOST_BYTES = 1 << 20  # of a file of keys, or of a template


def words(text: str) -> tuple[str, ...]:
    """Words of a list with commas, without empty ones."""
    return tuple(each.strip() for each in text.split(",") if each.strip())


def text_of(option: str, path: Path) -> str:
    """Text of a file that an option names.

    Raises
    ------
    UsageError
        It is not there, too large, or no UTF-8.
    """
    from wgpu_backend.cli.names import regular

    try:
        file = regular(path)
        size = file.stat().st_size
        if size > _MOST_BYTES:
            raise UsageError(f"{option}: {size} bytes, needs at most {_MOST_BYTES}")
        return file.read_text("utf-8")
    except FileNotFoundError:
        raise UsageError(f"{option}: {brief(str(path))}: no such file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{option}: {brief(str(path))}: no text in UTF-8") from None
