"""`wgpu-backend quantize`: conversion of a GGUF file to another type."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wgpu_backend.cli.console import PROGRAM, note, print_facts, print_text
from wgpu_backend.cli.failures import UsageError
from wgpu_backend.cli.names import find_model, require_file, require_writable
from wgpu_backend.cli.options import Debug, ImportanceMatrix, Json, Model, Threads
from wgpu_backend.cli.progress import bar
from wgpu_backend.errors import OptionError

if TYPE_CHECKING:
    from wgpu_backend.files.quantize.files import Report


def quantize(
    model: Model,
    out: Annotated[Path, typer.Argument(metavar="OUT.gguf", dir_okay=False)],
    dtype: Annotated[
        str, typer.Argument(metavar="TYPE", help="Type as llama.cpp names it: Q4_K_M, Q8_0, BF16.")
    ],
    importance: ImportanceMatrix = None,
    allow_requantize: Annotated[
        bool,
        typer.Option("--allow-requantize", help="Allow requantising a quantised file."),
    ] = False,
    threads: Threads = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Convert the matrices of a GGUF file to another type."""
    from wgpu_backend.files.quantize import files

    # First, so that swapped arguments are named, instead of a missing file.
    _require_type(out, dtype)
    path, out = find_model(model), require_writable(out)
    if path.is_dir():
        raise UsageError(
            f"quantize: {model} is a folder, needs a GGUF file; to do both in one step: "
            f"{PROGRAM} create {shlex.quote(str(out))} {shlex.quote(model)} --type {dtype}"
        )
    if importance is not None:
        importance = require_matrix(importance)
    with bar(f"Writing {out.name}") as progress:
        report = files.quantize(
            path,
            out,
            dtype,
            importance=importance,
            allow_requantize=allow_requantize,
            threads=threads,
            progress=progress,
        )
    note_unweighted(report, importance)
    if as_json:
        print_text(json.dumps(_make_json(report)) + "\n")
    else:
        print_facts(_list_facts(report))


def _require_type(out: Path, dtype: str) -> None:
    """Raise for an unknown type; mention the order of arguments if two are swapped."""
    from wgpu_backend.files.quantize.mixes import find_mix

    try:
        find_mix(dtype)
    except OptionError as error:
        try:
            find_mix(str(out))
        except OptionError:
            raise error from None
        raise UsageError(
            f"quantize: {str(out)!r} is a type and {dtype!r} a file; the order is MODEL OUT.gguf "
            "TYPE"
        ) from None


def note_unweighted(report: Report, importance: Path | None) -> None:
    """Print a note about matrices without entries in an importance matrix."""
    if report.unweighted:
        few = ", ".join(report.unweighted[:3])
        note(f"{importance} has no entries for {len(report.unweighted)} matrices: {few} …")


def require_matrix(path: Path) -> Path:
    """Return the path of an existing importance matrix; raises `UsageError`."""
    try:
        return require_file(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file, needs an importance matrix") from None


def _make_json(report: Report) -> dict[str, object]:
    return {
        "file": str(report.path),
        "type": report.mix.name,
        "bits_per_weight": report.bits_per_weight,
        "nbytes_before": report.nbytes_before,
        "nbytes": report.nbytes,
        "tensors": {name: str(dtype) for name, dtype in report.types.items()},
    }


def _list_facts(report: Report) -> list[tuple[str, str]]:
    counts = Counter(str(dtype).upper() for dtype in report.types.values())
    before, after = (nbytes / 1e6 for nbytes in (report.nbytes_before, report.nbytes))
    return [
        ("file", str(report.path)),
        ("type", f"{report.mix.name}, {report.bits_per_weight:.2f} bits per weight"),
        ("size", f"{before:.1f} MB -> {after:.1f} MB"),
        ("tensors", ", ".join(f"{count} {name}" for name, count in counts.most_common())),
    ]
