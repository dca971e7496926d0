"""The results of tuning in a file, by adapter, driver, profile and shaders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from wgpu_backend.graph.capabilities import Capabilities, Tile
from wgpu_backend.ml.calibration.device_cache import cache_file, read, write
from wgpu_backend.ml.calibration.self_test import device_key
from wgpu_backend.ml.calibration.tuning import Tuning
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.ops.linear.activation_rounding import EVERY_PRODUCT
from wgpu_backend.ops.linear.tiles import candidates

REMEMBERED = "tuned.json"
# Among the keys of a device in the file: products that round activations, and those that do not.
ROUNDED, UNROUNDED = "rounded", "unrounded"


def remember(
    executor: WgpuExecutor, profile: str, found: Tuning, cache: Path | None = None
) -> Path:
    """Write the chosen tiles to the file that `open_device` reads later.

    Parameters
    ----------
    found : Tuning
        Keys that are not among them keep what is remembered of them.
    cache : Path or None
        None for a file in the user's cache folder.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    OSError
        It cannot be written.
    """
    path = cache or cache_file(REMEMBERED)
    everything = read(path)
    name = device_key(executor, profile)
    # Taken out and added at the end, since a full file drops its first entries.
    known = _mapping(everything.pop(name, {}))
    tiles = {key: [tile.rows, tile.columns, tile.threads] for key, tile in found.winners.items()}
    measured = {c.key: c.chosen for c in found.rounding}
    verdicts = {
        field: sorted(
            {key for key in _products(known, field) if key not in measured}
            | {key for key, chosen in measured.items() if chosen == (field == ROUNDED)}
        )
        for field in (ROUNDED, UNROUNDED)
    }
    everything[name] = {**known, **tiles, **verdicts}
    return write(path, everything)


def add_tuning(
    capabilities: Capabilities, executor: WgpuExecutor, profile: str, cache: Path | None = None
) -> Capabilities:
    """Add remembered tuning to capabilities; ignore damaged or unknown entries.

    Parameters
    ----------
    executor : WgpuExecutor
        On the device.
    cache : Path or None
        See `remember`.
    """
    everything = read(cache or cache_file(REMEMBERED))
    if not everything:
        return capabilities
    known = _mapping(everything.get(device_key(executor, profile)))
    return replace(
        capabilities,
        tuned=dict(_valid(capabilities, known)),
        rounded=_products(known, ROUNDED),
        unrounded=_products(known, UNROUNDED),
    )


def _products(known: Mapping[str, object], field: str) -> frozenset[str]:
    names = known.get(field)
    found = cast("list[object]", names) if isinstance(names, list) else []
    # Other versions may have written other names.
    return EVERY_PRODUCT.intersection(str(name) for name in found)


def _valid(capabilities: Capabilities, known: Mapping[str, object]) -> Iterator[tuple[str, Tile]]:
    """Yield the entries whose tile the device supports."""
    for name, sizes in known.items():
        for tile in candidates(name, capabilities):
            if sizes == [tile.rows, tile.columns, tile.threads]:
                yield name, tile


def _mapping(found: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", found) if isinstance(found, dict) else {}
