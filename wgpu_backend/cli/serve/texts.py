"""Text values of options: lists of words, and small files."""

from __future__ import annotations

from pathlib import Path

from wgpu_backend.cli.failures import UsageError, brief

_MOST_BYTES = 1 << 20  # for files of keys or templates


def words(text: str) -> tuple[str, ...]:
    """Split a list at commas, without empty words."""
    return tuple(each.strip() for each in text.split(",") if each.strip())


def text_of(option: str, path: Path) -> str:
    """Read the text of a file that an option names.

    Raises
    ------
    UsageError
        It does not exist, is too large, or is not UTF-8.
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
