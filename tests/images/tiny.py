"""Makes the tiny pipelines of ``../shared/tools/tiny_pipelines.py`` in ``build/tiny``.

    python -m tests.images.tiny PYTHON [NAME …]

PYTHON is an interpreter with what the header of that tool asks for (torch, transformers,
diffusers); 21 pipelines take two minutes and 150 MB. Tests that compare with them use the fixture
`tiny`, and are skipped where they are not there.
"""

import json
import subprocess
import sys
from functools import cached_property
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
TOOL = ROOT.parent / "shared/tools/tiny_pipelines.py"
FOLDER = ROOT / "build/tiny"
NAMES = (
    "sd15", "sd15-pndm", "sd15-euler", "sd15-euler-a", "sd15-dpmpp2m", "sd15-dpmpp2m-karras",
    "sd15-img2img", "sd15-inpaint", "sd15-inpaint4", "sdxl", "sd3", "sd35", "flux1-dev",
    "flux1-schnell", "flux2-klein", "flux2-klein-base", "flux2-klein-edit", "z-image-turbo",
    "z-image", "qwen-image", "qwen-image-edit",
)  # fmt: skip


class Pipeline:
    """A pipeline and its reference.

    Attributes
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays of every stage, by the names in the tool's header."""
        with np.load(self.path / "reference/reference.npz") as stored:
            return {name: stored[name] for name in stored}

    @cached_property
    def reference(self) -> dict:
        """Arguments of the call, seed, size and steps."""
        return json.loads((self.path / "reference/reference.json").read_text())


def nmse(made: np.ndarray, known: np.ndarray) -> float:
    """Squared error by the square of what is known."""
    made, known = np.float64(made), np.float64(known)
    return float(((made - known) ** 2).sum() / (known**2).sum())


def main() -> None:
    """Make those that are not there."""
    python, *names = sys.argv[1:]
    for name in names or NAMES:
        if not (FOLDER / name / "reference/reference.npz").exists():
            sys.stderr.write(f"{name}\n")
            subprocess.run([python, TOOL, "make", name, FOLDER / name], check=True)


if __name__ == "__main__":
    main()
