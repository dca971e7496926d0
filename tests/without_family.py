"""Run the tests without a kernel family: the proof that it is an acceleration, which can go.

    python -m tests.without_family rasteriser [PYTEST ARGUMENTS]

The checkout is copied to a temporary folder; there the family's folders of kernels, shaders and
tests go, and its rows in the table. Then pytest runs in the copy.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared"  # beside the checkout, which some tests look for
TABLE = Path("wgpu_backend/kernels/table.py")
FOLDERS = ("wgpu_backend/kernels", "shaders/kernels", "tests/kernels")
NOT_COPIED = (".git", ".venv", "__pycache__", ".pytest_cache", ".ruff_cache", ".hypothesis")


def without_rows(table: str, name: str) -> str:
    """Text of the table of families without the import of one and its row.

    Raises
    ------
    ValueError
        The table has no such family.
    """
    imported = rf"^from wgpu_backend\.kernels\.{re.escape(name)} import FAMILY as (\w+)\n"
    found = re.search(imported, table, re.MULTILINE)
    if found is None:
        raise ValueError(f"{TABLE}: there is no family {name!r}")
    return re.sub(rf"^ +{found[1]},\n", "", table.replace(found[0], ""), flags=re.MULTILINE)


def delete(root: Path, name: str) -> None:
    """Take a family out of a checkout.

    Raises
    ------
    ValueError
        There is none of that name.
    """
    table = root / TABLE
    table.write_text(without_rows(table.read_text(encoding="utf-8"), name), encoding="utf-8")
    for folder in FOLDERS:
        shutil.rmtree(root / folder / name)


def run(name: str, arguments: Sequence[str]) -> int:
    """Exit status of pytest in a copy of the checkout that lacks a family."""
    with tempfile.TemporaryDirectory(prefix=f"without-{name}-") as folder:
        copy = Path(folder) / ROOT.name
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*NOT_COPIED), symlinks=True)
        delete(copy, name)
        if DATA.exists():
            (Path(folder) / DATA.name).symlink_to(DATA, target_is_directory=True)
        # Commands that tests start import the copy, too, wherever they run.
        env = {**os.environ, "PYTHONPATH": str(copy)}
        words = [sys.executable, "-m", "pytest", *arguments]
        return subprocess.run(words, cwd=copy, env=env, check=False).returncode


def main(words: Sequence[str]) -> int:
    """Run as a command; the exit status is pytest's, or 2 where no family goes by the name."""
    if not words:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    try:
        return run(words[0], words[1:])
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
