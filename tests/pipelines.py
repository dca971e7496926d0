"""Every tiny pipeline of pictures beside diffusers' tensors, stage by stage, as a table.

    python -m tests.pipelines [NAMES] [--make PYTHON] [--seed S] [--size WxH] [--device DEVICE]
        [--write FILE.md]

Pipelines are those of ``../shared/tools/tiny_pipelines.py`` in ``build/tiny``, or, of other seeds
and sizes, in a folder beside it; `--make` makes those that are not there, by a Python that has what
the tool's header asks for. Figures are NMSE (sum of squared differences by sum of squares). Stages
are fed with what diffusers' own were fed with; the picture is made from the prompt. An asterisk is
a figure above its limit, 1e-9 of a stage and 1e-6 of a picture. `--write` adds a table to a file.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

import wgpu_backend.array as wx
from tests.images import stages
from tests.images.tiny import FOLDER, NAMES, TOOL, Pipeline
from wgpu_backend import images
from wgpu_backend.errors import BackendError

STAGES = ("text", "denoiser", "decode", "encode", "preview")
COLUMNS = (*STAGES, "adapter", "picture")
OF_A_STAGE, OF_A_PICTURE = 1e-9, 1e-6


@dataclass(frozen=True, slots=True)
class Row:
    """Errors of a pipeline, by column; None where it has no such stage."""

    name: str
    errors: dict[str, float | None]

    def missed(self) -> list[str]:
        """Columns above their limits."""
        limits = dict.fromkeys(STAGES, OF_A_STAGE)
        return [
            column
            for column, error in self.errors.items()
            if error is not None and not error <= limits.get(column, OF_A_PICTURE)
        ]

    def line(self) -> str:
        """Row of a table."""
        missed = self.missed()
        cells = [
            "–" if (error := self.errors[c]) is None else f"{error:.1e}{'*' * (c in missed)}"
            for c in COLUMNS
        ]
        return f"| {self.name} | {' | '.join(cells)} |"


def row(path: Path) -> Row:
    """Errors of a pipeline on the default device."""
    tiny = Pipeline(path)
    with images.load(path) as made:
        decode, encode = stages.autoencoder_errors(tiny, made.networks)
        errors: dict[str, float | None] = {
            "text": stages.text_error(tiny, made.networks),
            "denoiser": stages.denoiser_error(tiny, made.networks),
            "decode": decode,
            "encode": encode,
            "preview": stages.preview_error(tiny) if (path / "taesd").is_dir() else None,
            "picture": stages.picture_error(made, tiny),
            "adapter": None,
        }
        if (path / "lora.safetensors").exists():
            made.load_lora_weights(path / "lora.safetensors")
            with np.load(path / "reference/lora.npz") as stored:
                errors["adapter"] = stages.picture_error(made, tiny, stored["image"])
    return Row(path.name, errors)


def rows(names: list[str], folder: Path, make: Callable[[str], object]) -> Iterator[Row]:
    """Rows of the pipelines that are there, or that can be made."""
    for name in NAMES:
        if names and not any(fnmatch(name, pattern) for pattern in names):
            continue
        if not (folder / name / "reference/reference.npz").exists():
            make(name)
        if (folder / name / "reference/reference.npz").exists():
            yield row(folder / name)
        else:
            sys.stderr.write(f"{name}: not in {folder}, see --make\n")


def maker(folder: Path, options: argparse.Namespace) -> Callable[[str], object]:
    """What makes a pipeline of this seed and size, where somebody said how."""

    def make(name: str) -> None:
        if options.make:
            command: list[Any] = [options.make, TOOL, "make", name, folder / name]
            command += ["--seed", str(options.seed), "--size", options.size]
            subprocess.run(command, check=True)

    return make


def say(text: str) -> None:
    """Show what is there before the rest is made."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Print the table; 1 where a figure is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--make", metavar="PYTHON")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", default="64x64")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--write", type=Path, metavar="FILE.md")
    options = parser.parse_args()
    usual = options.seed == 0 and options.size == "64x64"
    folder = FOLDER if usual else FOLDER.with_name(f"tiny-{options.seed}-{options.size}")
    try:
        wx.set_default_device(options.device)
    except BackendError as error:
        sys.exit(str(error))
    device = wx.default_device().name
    lines = [f"### {device}, seed {options.seed}, {options.size}", ""]
    lines += [f"| pipeline | {' | '.join(COLUMNS)} |", "|---|" + "---|" * len(COLUMNS)]
    say("\n".join(lines))
    missed = False
    for made in rows(options.names, folder, maker(folder, options)):
        lines.append(made.line())
        say(lines[-1])
        missed |= bool(made.missed())
    if options.write:
        with options.write.open("a") as file:
            file.write("\n".join(lines) + "\n\n")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
