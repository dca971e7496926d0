"""The image model that comes with the package: ``load("pictures")``."""

from __future__ import annotations

from pathlib import Path

PICTURES = "pictures"


def bundled_pictures() -> Path:
    """Return the folder of the image model that comes with the package."""
    return Path(__file__).parent.parent / "bundled" / PICTURES


def find_folder(name: str | Path) -> Path:
    """Return the folder of a name; ``pictures`` is the bundled model unless such a file exists."""
    path = Path(name)
    return bundled_pictures() if str(name) == PICTURES and not path.exists() else path
