"""The table of `wgpu-backend show --plan`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from wgpu_backend.cli.console import (
    human_bytes,
    human_seconds,
    print_facts,
    print_table,
    print_text,
)
from wgpu_backend.cli.loading import find_devices
from wgpu_backend.cli.options import ModelSettings
from wgpu_backend.cli.parameters import PARAMETERS
from wgpu_backend.dtypes import named
from wgpu_backend.engine.placing import Plan, plan_model
from wgpu_backend.files.gguf.one_file import text_part
from wgpu_backend.files.huggingface.folder import open_model_file
from wgpu_backend.ml.placement import EMBEDDING, HOST_SPEED, DeviceUse, PlacementOptions

COLUMNS = ("device", "name", "layers", "weights", "cache", "compute", "total", "free", "time")


def print_plan(
    path: Path,
    devices: Sequence[str],
    options: PlacementOptions | None,
    num_ctx: str | None,
    parallel: int,
    kv_dtype: str,
    *,
    mmproj: Path | None,
    as_json: bool,
) -> None:
    """Print where the layers of a model would go.

    Parameters
    ----------
    devices : sequence of str
        Names of devices; empty for all GPUs, or the best device without one.
    num_ctx : str or None
        Positions in the context; None for the default.
    mmproj : Path or None
        See `measure_towers`.

    Raises
    ------
    UsageError
        A device does not exist, or an option does not fit the model or the devices.
    """
    context = PARAMETERS["num_ctx"]
    positions = None if num_ctx is None else int(context.number(num_ctx, context.option))
    infos = find_devices(ModelSettings(devices=tuple(devices)))
    with open_model_file(path) as opened:
        plan = plan_model(
            text_part(opened),
            infos,
            options,
            num_ctx=positions,
            num_parallel=parallel,
            kv_dtype=named(kv_dtype),
            mmproj=mmproj,
        )
    if as_json:
        print_text(json.dumps(describe_plan(plan), indent=2) + "\n")
        return
    print_table(COLUMNS, list_rows(plan), right=COLUMNS[3:])
    print_text("\n")
    print_facts(list_facts(plan, parallel, kv_dtype))


def list_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return a row for each device, those without a part of the model last."""
    infos = {info.id: info for info in plan.devices}
    uses = {use.id: use for use in plan.uses}
    rows: list[tuple[str, ...]] = []
    for name in [*uses, *(i for i in infos if i not in uses)]:
        info, use = infos[name], uses.get(name)
        if use is None:
            rows.append((name, info.name, "none", "", "", "", "", _free(plan, name), ""))
            continue
        if use.host_size:
            rows.append(_host_row(plan, use))
        parts = (sum(use.weights), sum(use.cache), use.graph, use.size)
        cells = [human_bytes(nbytes) for nbytes in parts]
        layers, own = describe_layers(plan, name), use.seconds - use.host_seconds
        rows.append((name, info.name, layers, *cells, _free(plan, name), human_seconds(own)))
    return rows


def _free(plan: Plan, device: str) -> str:
    """Return the free memory of a device."""
    free = next(budget.free_nbytes for budget in plan.budgets if budget.id == device)
    return "unknown" if free is None else human_bytes(free)


def _host_row(plan: Plan, use: DeviceUse) -> tuple[str, ...]:
    """Return the row of the weights and states that a device reads from the host's memory."""
    parts = (sum(use.host_weights), sum(use.host_cache), 0, use.host_size)
    cells = [human_bytes(nbytes) for nbytes in parts]
    layers = describe_layers(plan, use.id, on_host=True) or "caches"
    return (
        "",
        f"host memory for {use.id}",
        layers,
        *cells,
        _free(plan, plan.placement.host_device),
        human_seconds(use.host_seconds),
    )


def describe_layers(plan: Plan, device: str, *, on_host: bool = False) -> str:
    """Return the parts of the model on a device: ``embedding, 0-15 (16)``.

    Parameters
    ----------
    on_host : bool
        Those that it reads from the host's memory, in place of those in its own.
    """
    placement = plan.placement
    at, far = placement.devices.index(device), placement.host
    layers = [each for each in placement.layers_on(device) if (each in far) == on_host]
    table = placement.embedding == at and (EMBEDDING in far) == on_host
    parts = ["embedding"] if table else []
    if layers:
        first, last = layers[0], layers[-1]
        parts.append(f"{first}-{last} ({len(layers)})" if last > first else f"{first} (1)")
    output = placement.output == at and not on_host
    return ", ".join([*parts, *(["output"] if output else [])])


def list_facts(plan: Plan, parallel: int, kv_dtype: str) -> list[tuple[str, str]]:
    """Return the plan's assumptions and predictions, as names and values."""
    layers = len(plan.placement.layers) + 1
    answers = f"{parallel} answers of " if parallel > 1 else ""
    positions = "position" if plan.sizes.num_ctx == 1 else "positions"
    context = f"{answers}{plan.sizes.num_ctx} {positions}, {kv_dtype} keys and values"
    reserve = human_bytes(plan.options.reserve_nbytes)
    step, other = human_seconds(plan.step_seconds), plan.seconds_otherwise()
    otherwise = list[tuple[str, str]]()
    if other is not None:
        by_cpu = plan.placement.layers_on(plan.placement.host_device)
        option = "--op-offload" if by_cpu else "--no-op-offload"
        otherwise = [(f"with {option}", f"{human_seconds(other)} predicted")]
    return [
        ("GPU layers", f"{plan.placement.gpu_layers} of {layers}, with the output head as one"),
        ("context", context),
        ("reserve", f"{reserve} of each memory stay free"),
        ("one token", f"{step} predicted from {_speeds(plan)}"),
        *otherwise,
    ]


def _speeds(plan: Plan) -> str:
    """Return the origin of the speeds that a prediction uses."""
    host = plan.placement.host_device
    speed = next((each.speed for each in plan.budgets if each.id == host), HOST_SPEED)
    if speed == HOST_SPEED:
        return "typical speeds, not measured"
    return (
        f"typical speeds; layers on the CPU run on {host}, {speed / 1e9:.1f} GB/s as tune measured"
    )


def describe_plan(plan: Plan) -> dict[str, object]:
    """Return the plan as plain data."""
    return {
        "placement": {**asdict(plan.placement), "host": sorted(plan.placement.host)},
        "gpu_layers": plan.placement.gpu_layers,
        "num_ctx": plan.sizes.num_ctx,
        "reserve": plan.options.reserve_nbytes,
        "seconds": plan.step_seconds,
        "memory": asdict(plan.memory()),
    }
