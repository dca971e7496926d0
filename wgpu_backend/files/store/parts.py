"""Parts of a blob that is being fetched, kept as Ollama does: a file, and a note for each part."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from wgpu_backend.files.store.files import replace

# Number of parts of a blob, unless they would be too small or too large.
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
        found.sort(key=lambda part: part.offset)
        at = 0
        for part in found:
            if part.offset != at or not 0 <= part.completed <= part.size:
                return None
            at += part.size
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if found and at == size and partial_path(path).exists() else None
