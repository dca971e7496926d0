"""Paged attention of tokens that share no keys: lanes of a subgroup read a key together."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.device_info import Capabilities
from wgpu_backend.graph.node import Launch
from wgpu_backend.kernels.gpu.subgroups import has_eight_lanes
from wgpu_backend.ops.attention_kernels import Rows, rows_of
from wgpu_backend.ops.rope_attention import NORMS, has_bindings

CLUSTER = 8  # lanes of a subgroup that read a key together
CLUSTER_SUMS = 16  # vectors of results that each of them holds, and of queries
THREADS = 64


def attend(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Attend by clusters of lanes; None where tokens share keys, or subgroups are too small."""
    rows = rows_of(launch)
    if not has_eight_lanes(capabilities) or rows.tokens > rows.sequences:
        return None
    return _clusters(launch, rows, launch.count("v_quads"))


def attend_prepared(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Attend after norms, rotation and cache write; None where buffers are too few."""
    norms = sum(name in launch.operands for name in NORMS)
    if not has_bindings(capabilities, norms):
        return None
    found = attend(launch, capabilities)
    return found and _with_prologue(found)


def _with_prologue(launch: Launch) -> Launch:
    """Launch whose queries are turned in registers: every split of the positions needs them."""
    name = str(launch.choices["before"]).removeprefix("before/")
    before = f"kernels/gpu/prologue/{name}"
    return replace(launch, choices={**launch.choices, "before": before})


def _clusters(launch: Launch, rows: Rows, v_quads: int) -> Launch:
    k_lane, v_lane = (-(-quads // CLUSTER) for quads in (launch.count("k_quads"), v_quads))
    most = max(CLUSTER_SUMS // max(k_lane, v_lane), 1)
    step = -(-rows.group // -(-rows.group // most))
    choices: dict[str, str | int] = {
        "ROWS": step,
        "K_QUADS": k_lane,
        "V_QUADS": v_lane,
        "K_EVEN": k_lane * CLUSTER == launch.count("k_quads"),
        "V_EVEN": v_lane * CLUSTER == v_quads,
        "BLOCK": launch.count("block"),
        "WG": THREADS,
    }
    return replace(
        launch,
        shader="kernels/gpu/attention_token",
        groups=(
            launch.count("kv_heads"),
            max(rows.tokens * -(-rows.group // step), 1),
            launch.count("splits"),
        ),
        params={**launch.params, "step": step},
        choices={**launch.choices, **choices, **_fused_snippets(launch)},
    )


def _fused_snippets(launch: Launch) -> dict[str, str]:
    """How hardware reads keys and values in blocks."""
    found = {name: str(launch.choices[name]) for name in "kv"}
    return {
        name: f"{path}_fused"
        for name, path in found.items()
        if path.startswith("vec4/") and launch.operands[name].spec.dtype.quantised
    }
