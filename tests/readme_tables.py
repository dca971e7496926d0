"""Make the tables of architectures and formats in docs/models.md from the registries.

python -m tests.readme_tables      writes them into docs/models.md
"""

from __future__ import annotations

import inspect
import re
import sys
from collections import defaultdict
from pathlib import Path

from wgpu_backend import dtypes
from wgpu_backend.files.huggingface.family import families
from wgpu_backend.files.huggingface.tower import tower_families
from wgpu_backend.nn import model, tower

PAGE = Path(__file__).parent.parent / "docs" / "models.md"
BEGIN, END = "<!-- python -m tests.readme_tables -->", "<!-- end -->"
TOWERS = "<!-- towers -->"


def architecture_table() -> str:
    """A row for each file of the package: models, architectures, and classes of checkpoints."""
    classes: dict[str, list[str]] = defaultdict(list)
    for name, kind in families().items():
        classes[kind.architecture].append(name)
    names: dict[str, list[str]] = defaultdict(list)
    for name, kind in model.architectures().items():
        if kind.__module__.startswith("wgpu_backend.models."):
            names[_title(kind)].append(name)
    rows: list[str] = []
    for title, found in sorted(names.items()):
        owners = sorted(owner for name in found for owner in classes[name])
        rows.append(f"| {title} | {_code(found)} | {_code(owners)} |")
    head = ["| models | `general.architecture` | classes of folders |", "|---|---|---|"]
    return "\n".join([*head, *rows])


def _title(kind: type) -> str:
    """First line of the module's docstring, which names models."""
    return (inspect.getdoc(sys.modules[kind.__module__]) or "").split("\n")[0].rstrip(".")


def tower_table() -> str:
    """A row for each file of towers: models, input, projectors, and classes of checkpoints."""
    found: dict[type, list[str]] = defaultdict(list)
    for (_, projector), kind in tower.towers().items():
        found[kind].append(projector)
    classes: dict[str, list[str]] = defaultdict(list)
    for name, kinds in tower_families().items():
        for family in kinds:
            classes[family.projector].append(name)
    files: dict[str, list[type]] = defaultdict(list)
    for kind in found:
        files[kind.__module__].append(kind)
    rows: list[str] = []
    for kinds in files.values():
        projectors = [name for kind in kinds for name in found[kind]]
        owners = sorted({name for projector in projectors for name in classes[projector]})
        has_video = kinds[0].prepare_video is not tower.Tower.prepare_video
        taken = f"{kinds[0].modality}{', video' if has_video else ''}"
        cells = (_models(kinds[0]), taken, _code(projectors), _code(owners))
        rows.append(f"| {' | '.join(cells)} |")
    head = ["| models | input | `clip.projector_type` | classes of folders |", "|---|---|---|---|"]
    return "\n".join([*head, *sorted(rows)])


def _models(kind: type) -> str:
    """Names of models in the first line of the module's docstring: "Pixtral's tower: …"."""
    title = _title(kind).split(":")[0]
    return (
        re.sub(r"'s(?= tower| and |, )", "", title)
        .removeprefix("The towers of ")
        .removesuffix(" for sound")
        .removesuffix(" tower")
    )


def _code(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def formats() -> str:
    """Types that weights may have, in the order of the registry."""
    kinds = [d for d in dtypes.ALL if d.ggml is not None and (d.quantised or d.name in FLOATS)]
    return ", ".join(d.name.upper() for d in kinds)


FLOATS = ("f32", "f16", "bf16")


def update(page: str) -> str:
    """Return the page with its tables up to date."""
    head, _, rest = page.partition(BEGIN)
    lines = [
        f"| weights | {formats()} |" if line.startswith("| weights |") else line
        for line in head.splitlines()
    ]
    made = "\n".join([*lines, BEGIN, architecture_table(), END]) + rest.partition(END)[2]
    head, _, rest = made.partition(TOWERS)
    return f"{head}{TOWERS}\n{tower_table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(update(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
