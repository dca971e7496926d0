"""Make the tables of architectures and formats in docs/models.md from the registries.

python -m tests.readme_tables      writes them into docs/models.md
"""

from __future__ import annotations

import inspect
import sys
from collections import defaultdict
from pathlib import Path

from wgpu_backend import dtypes
from wgpu_backend.nn import model

PAGE = Path(__file__).parent.parent / "docs" / "models.md"
BEGIN, END = "<!-- python -m tests.readme_tables -->", "<!-- end -->"


def architecture_table() -> str:
    """A row for each file of the package: what its docstring calls the models, their names."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, kind in model.architectures().items():
        if kind.__module__.startswith("wgpu_backend.models."):
            names[_title(kind)].append(f"`{name}`")
    rows = [f"| {title} | {', '.join(found)} |" for title, found in sorted(names.items())]
    return "\n".join(["| models | `general.architecture` |", "|---|---|", *rows])


def _title(kind: type) -> str:
    """First line of the module's docstring, which names models."""
    return (inspect.getdoc(sys.modules[kind.__module__]) or "").split("\n")[0].rstrip(".")


def formats() -> str:
    """Types that weights may have, in the order of the registry."""
    kinds = [d for d in dtypes.ALL if d.ggml is not None and (d.quantised or d.name in FLOATS)]
    return ", ".join(d.name.upper() for d in kinds)


FLOATS = ("f32", "f16", "bf16")


def update(page: str) -> str:
    """Return the page with both tables up to date."""
    head, _, rest = page.partition(BEGIN)
    lines = [
        f"| weights | {formats()} |" if line.startswith("| weights |") else line
        for line in head.splitlines()
    ]
    return "\n".join([*lines, BEGIN, architecture_table(), END]) + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(update(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
