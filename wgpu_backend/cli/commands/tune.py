"""`wgpu-backend tune`: measure and store the fastest matmul tiles of a device."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from wgpu_backend.cli.console import human_seconds, log_as_notes, note, print_table, print_text
from wgpu_backend.cli.failures import UsageError, brief
from wgpu_backend.cli.options import Debug, Device, Json, Profile, ProfileName
from wgpu_backend.cli.progress import bar

if TYPE_CHECKING:
    from wgpu_backend.dtypes import DType
    from wgpu_backend.graph.capabilities import DeviceInfo
    from wgpu_backend.ml.calibration.tuning import Compared, Measured, Tuning

COLUMNS = ("kernel", "format", "columns", "rows × columns", "threads", "time", "GB/s", "")
ROUNDING_COLUMNS = ("format", "columns", "activations", "in f32", "rounded", "")
_FOLDED = {"one": "1", "few": "2 to 8", "many": "more"}


def tune(
    only: Annotated[
        str, typer.Option("--only", metavar="FORMATS", help="Weight formats: q4_0,q6_k.")
    ] = "",
    as_json: Json = False,
    device: Device = None,
    profile: Profile = "full",
    debug: Debug = False,
) -> None:
    """Find the fastest kernels of a device, and time the CPU."""
    from wgpu_backend.cli.loading import find_gpu
    from wgpu_backend.device.adapters import find_device
    from wgpu_backend.ml.backend import BackendParams, make_executor
    from wgpu_backend.ml.calibration import tuning, tuning_cache
    from wgpu_backend.ml.wgpu.executor import WgpuExecutor

    formats = _parse_formats(only)
    log_as_notes()
    info = find_device(find_gpu(device))
    # First, as the kernels are tuned for the implementation that `auto` uses from then on.
    _compare_implementations(info, profile)
    # Without fusion, so that each kernel is measured on its own.
    executor = make_executor("wgpu", BackendParams(info, profile, fusion=False))
    assert isinstance(executor, WgpuExecutor)
    try:
        with bar(f"Tuning {executor.info.name}") as progress:
            found = tuning.tune(executor, formats, None, progress or _ignore)
        _print(found, executor.info.name, as_json=as_json)
        path = tuning_cache.remember(executor, profile, found)
    finally:
        executor.close()
    _measure_hosts()
    changed = sum(m.chosen and not m.default for m in found.tiles)
    of = sum(m.chosen for m in found.tiles)
    note(f"{changed} of {of} differ from the defaults; stored in {path}")


def _compare_implementations(info: DeviceInfo, profile: ProfileName) -> None:
    """Measure Dawn and wgpu-native where both open the device, and store which `auto` uses."""
    from wgpu_backend.ml.calibration import implementations

    if implementations.has_choice(info):
        race = implementations.run_race(info, profile)
        implementations.remember(info, profile, race)
        note(implementations.explain(info, race))


def _measure_hosts() -> None:
    """Measure and store the speed of NumPy and of software adapters; plans use the fastest."""
    from wgpu_backend.device.adapters import Devices
    from wgpu_backend.ml.calibration import host_speed

    for info in Devices():
        if info.kind in ("software", "cpu"):
            speed = host_speed.measure_speed(info)
            host_speed.remember_speed(info, speed)
            note(f"{info.id}: reads {speed / 1e9:.1f} GB/s of weights on the CPU")


def _print(found: Tuning, device: str, *, as_json: bool) -> None:
    if as_json:
        plain = {
            "tiles": [_convert(m) for m in found.tiles],
            "rounding": [_convert(c) for c in found.rounding],
        }
        print_text(json.dumps(plain, indent=2) + "\n")
    else:
        print_table(COLUMNS, map(_make_row, found.tiles), right=COLUMNS[3:7], title=device)
        _print_rounding(found.rounding)


def _print_rounding(found: Sequence[Compared]) -> None:
    if found:
        rows = map(_make_rounding_row, found)
        print_table(ROUNDING_COLUMNS, rows, right=ROUNDING_COLUMNS[3:5], title="Rounding")


def _make_rounding_row(c: Compared) -> tuple[str, ...]:
    dtype, columns, *form = c.key.split(" ")
    # Kernels with wrong values count as infinitely slow, so that they are never chosen.
    wrong = math.isinf(c.rounded_seconds)
    rounded = "" if wrong else human_seconds(c.rounded_seconds)
    mark = "wrong values" if wrong else "chosen" if c.chosen else "f32"
    bits = "two parts of eight bits" if form else "eight bits, with --coarse"
    return (dtype, _FOLDED[columns], bits, human_seconds(c.seconds), rounded, mark)


def _parse_formats(text: str) -> Sequence[DType]:
    from wgpu_backend.dtypes import BF16, F16, F32, named
    from wgpu_backend.errors import DTypeError
    from wgpu_backend.ops.linear.q8 import FORMATS

    known = (*FORMATS, F16, BF16, F32)
    try:
        found = [named(word.strip()) for word in text.split(",") if word.strip()]
    except DTypeError as error:
        raise UsageError(f"--only: {error}") from None
    if text and not found:
        raise UsageError(f"--only: {brief(text)}, needs formats of weights like q4_0,q6_k")
    strange = [str(dtype) for dtype in found if dtype not in known]
    if strange:
        raise UsageError(
            f"--only: {', '.join(strange)}, needs some of {', '.join(map(str, known))}"
        )
    return found or known


def _make_row(m: Measured) -> tuple[str, ...]:
    shader, dtype, columns = m.key.split(" ")
    wrong = math.isinf(m.seconds)
    figures = ("", "") if wrong else (human_seconds(m.seconds), f"{m.gbytes:.2f}")
    mark = "chosen" if m.chosen else "wrong values" if wrong else ""
    tile = f"{m.tile.rows} × {m.tile.columns}"
    return (shader, dtype, _FOLDED[columns], tile, str(m.tile.threads), *figures, mark)


def _convert(found: Measured | Compared) -> dict[str, object]:
    """Convert a result for JSON, which has no infinity."""
    return {k: None if v == math.inf else v for k, v in asdict(found).items()}


def _ignore(share: float) -> None:
    """Ignore the progress."""
