"""The picture model that comes with the package: ``load("pictures")``."""

from __future__ import annotations

from pathlib import Path

PICTURES = "pictures"


def bundled_pictures() -> Path:
    """Folder of the picture model that comes with the package."""
    return Path(__file__).parent.parent / "bundled" / PICTURES


def find_folder(name: str | Path) -> Path:
    """Folder that a name means: the bundled model's for ``pictures``, unless there is such a file.

    Parameters
    ----------
    name : path
    """
    path = Path(name)
    return bundled_pictures() if str(name) == PICTURES and not path.exists() else path
