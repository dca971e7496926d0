"""The table of this machine's devices."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from wgpu_backend.cli.console import human_bytes, note, print_table, print_text
from wgpu_backend.cli.drivers import suggest_driver

if TYPE_CHECKING:
    from wgpu_backend.graph.capabilities import DeviceInfo


def print_devices(*, as_json: bool = False) -> None:
    """Print the devices of this machine, best first."""
    from wgpu_backend.device.adapters import Devices
    from wgpu_backend.ml.calibration.implementations import explain, has_choice, recall

    found = Devices()
    if as_json:
        print_text(json.dumps([asdict(info) for info in found], indent=2) + "\n")
        return
    columns = ("id", "name", "kind", "API", "driver", "memory")
    print_table(columns, [_make_row(info) for info in found], right=("memory",))
    for info in found:
        if info.matrix is not None:
            unit = f"{info.matrix.m}x{info.matrix.n}x{info.matrix.k}"
            note(f"{info.id}: matrix units f16 {unit} with sums in f32, by --implementation dawn")
            if has_choice(info):
                race = recall(info, "full")
                note(explain(info, race) if race else f"{info.id}: auto decides at the first use")
        elif "dawn" in info.implementations:
            note(f"{info.id}: --implementation dawn opens it; it lists no matrix units")
    # NumPy's device comes last, so it is the first only if there is no adapter.
    if found[0].kind == "cpu":
        note(f"no GPU adapter; {suggest_driver()}")


def _make_row(info: DeviceInfo) -> tuple[str, ...]:
    memory = human_bytes(info.total_memory) if info.total_memory else ""
    return info.id, info.name, info.kind, info.api, info.driver, memory
