"""`wgpu-backend tune`: measure and store the fastest matmul tiles of a device."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict

from wgpu_backend.cli.console import (
    answer,
    human_seconds,
    log_as_notes,
    note,
    print_table,
)
from wgpu_backend.cli.failures import UsageError, brief
from wgpu_backend.cli.loading import named_gpu
from wgpu_backend.cli.options import ProfileName
from wgpu_backend.cli.progress import bar
from wgpu_backend.dtypes import BF16, F16, F32, DType, named
from wgpu_backend.errors import DTypeError
from wgpu_backend.ml.backend import BackendParams, make_executor
from wgpu_backend.ml.calibration.tuning import Compared, Effort, Measured, Tuning, tune
from wgpu_backend.ml.calibration.tuning_cache import remember
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.ops.linear.q8 import FORMATS

WEIGHTS = (*FORMATS, F16, BF16, F32)
COLUMNS = ("kernel", "format", "columns", "rows × columns", "threads", "time", "GB/s", "")
ROUNDING_COLUMNS = ("format", "columns", "activations", "in f32", "rounded", "")
_FOLDED = {"one": "1", "few": "2 to 8", "many": "more"}


def tune_device(
    device: str | None,
    profile: ProfileName,
    formats: str,
    *,
    as_json: bool,
    effort: Effort | None = None,
) -> None:
    """Measure kernels, store the results, and print a table or JSON.

    Parameters
    ----------
    device : str or None
        Name of the device; None for the best.
    formats : str
        Names of weight formats separated by commas; all if empty.

    Raises
    ------
    UsageError
        A format is unknown, or the device is NumPy.
    """
    wanted = _formats(formats)
    log_as_notes()
    executor = make_executor("wgpu", BackendParams(named_gpu(device), profile, fusion=False))
    assert isinstance(executor, WgpuExecutor)
    try:
        with bar(f"Tuning {executor.info.name}") as progress:
            found = tune(executor, wanted, effort, progress or _unseen)
        _print(found, executor.info.name, as_json=as_json)
        path = remember(executor, profile, found)
    finally:
        executor.close()
    changed = sum(m.chosen and not m.default for m in found.tiles)
    of = sum(m.chosen for m in found.tiles)
    note(f"{changed} of {of} differ from the defaults; kept in {path}")


def _print(found: Tuning, device: str, *, as_json: bool) -> None:
    if as_json:
        plain = {
            "tiles": [_plain(m) for m in found.tiles],
            "rounding": [_plain(c) for c in found.rounding],
        }
        answer(json.dumps(plain, indent=2) + "\n")
    else:
        print_table(COLUMNS, map(_row, found.tiles), right=COLUMNS[3:7], title=device)
        _print_rounding(found.rounding)


def _print_rounding(found: Sequence[Compared]) -> None:
    if found:
        rows = map(_rounding_row, found)
        print_table(ROUNDING_COLUMNS, rows, right=ROUNDING_COLUMNS[3:5], title="Rounding")


def _rounding_row(c: Compared) -> tuple[str, ...]:
    dtype, columns, *form = c.key.split(" ")
    wrong = math.isinf(c.rounded_seconds)
    rounded = "" if wrong else human_seconds(c.rounded_seconds)
    mark = "wrong values" if wrong else "chosen" if c.chosen else "f32"
    bits = "two parts of eight bits" if form else "eight bits, with --coarse"
    return (dtype, _FOLDED[columns], bits, human_seconds(c.seconds), rounded, mark)


def _formats(text: str) -> Sequence[DType]:
    try:
        found = [named(word.strip()) for word in text.split(",") if word.strip()]
    except DTypeError as error:
        raise UsageError(f"--only: {error}") from None
    if text and not found:
        raise UsageError(f"--only: {brief(text)}, needs formats of weights like q4_0,q6_k")
    strange = [str(dtype) for dtype in found if dtype not in WEIGHTS]
    if strange:
        raise UsageError(
            f"--only: {', '.join(strange)}, needs some of {', '.join(map(str, WEIGHTS))}"
        )
    return found or WEIGHTS


def _row(m: Measured) -> tuple[str, ...]:
    shader, dtype, columns = m.key.split(" ")
    wrong = math.isinf(m.seconds)
    figures = ("", "") if wrong else (human_seconds(m.seconds), f"{m.gbytes:.2f}")
    mark = "chosen" if m.chosen else "wrong values" if wrong else ""
    tile = f"{m.tile.rows} × {m.tile.columns}"
    return (shader, dtype, _FOLDED[columns], tile, str(m.tile.threads), *figures, mark)


def _plain(found: Measured | Compared) -> dict[str, object]:
    """Convert a result for JSON, which has no infinity."""
    return {k: None if v == math.inf else v for k, v in asdict(found).items()}


def _unseen(share: float) -> None:
    """Ignore the progress."""
