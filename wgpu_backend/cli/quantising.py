"""`wgpu-backend quantize`: conversion of a GGUF file to another type."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from pathlib import Path

from wgpu_backend.cli.console import PROGRAM, answer, note, print_facts
from wgpu_backend.cli.failures import UsageError
from wgpu_backend.cli.names import model_path, regular, writable
from wgpu_backend.cli.progress import bar
from wgpu_backend.errors import OptionError
from wgpu_backend.files.quantize.files import Report, quantize
from wgpu_backend.files.quantize.mixes import find_mix


def quantise_file(
    name: str,
    out: Path,
    dtype: str,
    importance: Path | None,
    threads: int | None,
    *,
    allow_requantize: bool,
    as_json: bool,
) -> None:
    """Write the quantised file with a progress bar, and print its facts."""
    _require_type(out, dtype)
    path, out = model_path(name), writable(out)
    if path.is_dir():
        raise UsageError(
            f"quantize: {name} is a folder, needs a GGUF file; to do both in one step: "
            f"{PROGRAM} create {shlex.quote(str(out))} {shlex.quote(name)} --type {dtype}"
        )
    if importance is not None:
        importance = matrix_file(importance)
    with bar(f"Writing {out.name}") as progress:
        report = quantize(
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
        answer(json.dumps(_facts(report)) + "\n")
        return
    print_facts(_shown(report))


def _require_type(out: Path, dtype: str) -> None:
    """Raise for an unknown type; mention the order of arguments if two are swapped."""
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
        note(f"{importance} says nothing of {len(report.unweighted)} matrices: {few} …")


def matrix_file(path: Path) -> Path:
    """Return the path of an existing importance matrix; raises `UsageError`."""
    try:
        return regular(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file, needs an importance matrix") from None


def _facts(report: Report) -> dict[str, object]:
    return {
        "file": str(report.path),
        "type": report.mix.name,
        "bits_per_weight": report.bits_per_weight,
        "nbytes_before": report.nbytes_before,
        "nbytes": report.nbytes,
        "tensors": {name: str(dtype) for name, dtype in report.types.items()},
    }


def _shown(report: Report) -> list[tuple[str, str]]:
    counts = Counter(str(dtype).upper() for dtype in report.types.values())
    before, after = (nbytes / 1e6 for nbytes in (report.nbytes_before, report.nbytes))
    return [
        ("file", str(report.path)),
        ("type", f"{report.mix.name}, {report.bits_per_weight:.2f} bits per weight"),
        ("size", f"{before:.1f} MB -> {after:.1f} MB"),
        ("tensors", ", ".join(f"{count} {name}" for name, count in counts.most_common())),
    ]
