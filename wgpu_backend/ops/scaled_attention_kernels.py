"""Kernels of attention over plain keys: which suits a device, and how large its tiles are.

Where lanes are a CPU's, a tile is what `wgpu_backend.ops.attention_kernels` says: heads of queries
that share keys, and neighbouring tokens. Elsewhere it is neighbouring tokens of one head.
"""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.device_info import Capabilities
from wgpu_backend.graph.node import Launch
from wgpu_backend.ops.attention_kernels import LANE_SUMS, Rows, lane_tile
from wgpu_backend.ops.check import MAX_GROUPS
from wgpu_backend.ops.tiles import LANES

QUERIES = 4  # tokens that share the keys a work group reads
LANE_VECTORS = 32  # sums, in vec4, that one lane may hold
QUERY_NBYTES = 12288  # workgroup memory for queries
QUERY_STEP = 16  # places in vec4: the fewer sizes there are, the fewer kernels are compiled


def select_tiles(launch: Launch, capabilities: Capabilities) -> Launch:
    """Choose the kernel for a device, and the tile of queries that a work group takes."""
    if capabilities.telling_lanes and _in_vectors(launch, "k") and _in_vectors(launch, "v"):
        by_lanes = _lanes(launch)
        if by_lanes is not None:
            return by_lanes
    return _queries(launch, 8 if capabilities.software else 64)


def _lanes(launch: Launch) -> Launch | None:
    """Launch that takes heads of queries together; None where sums or tiles are too many."""
    batch, tokens, heads, _ = launch.operands["q"].spec.shape
    keys, v = launch.operands["k"].spec, launch.operands["v"].spec
    rows = Rows(tokens, heads // keys.shape[2], sequences=0)
    step, choices = lane_tile(rows, v.shape[3] // 4)
    tiles = max(-(-tokens * rows.group // max(step, 1)), 1)
    if v.shape[3] > 4 * LANES * LANE_SUMS or tiles > MAX_GROUPS:
        return None
    return replace(
        launch,
        shader="scaled_attention_lanes",
        groups=(keys.shape[2], tiles, max(batch, 1) * _splits(launch)),
        params={**launch.params, "step": step},
        choices={**launch.choices, **choices},
    )


def _queries(launch: Launch, width: int) -> Launch:
    """Launch that takes neighbouring queries of one head together."""
    batch, tokens, heads, cols = launch.operands["q"].spec.shape
    lane_quads = max(-(-launch.operands["v"].spec.shape[3] // (4 * width)), 1)
    quads = -(-cols // (4 * QUERY_STEP)) * QUERY_STEP
    fitting = min(LANE_VECTORS // lane_quads, QUERY_NBYTES // (16 * quads))
    queries = 1 if tokens == 1 or fitting < QUERIES else QUERIES
    tiles = max(-(-tokens // queries), 1)
    return replace(
        launch,
        groups=(max(heads, 1), tiles, max(batch, 1) * _splits(launch)),
        choices={
            **launch.choices,
            "WG": width,
            "QUERIES": queries,
            "LANE_QUADS": lane_quads,
            "K_QUADS": quads,
            "TAIL": cols % 4 != 0,
            **_reading(launch, "k"),
            **_reading(launch, "v"),
        },
    )


def _splits(launch: Launch) -> int:
    splits = launch.params["splits"]
    assert isinstance(splits, int)
    return splits


def _reading(launch: Launch, name: str) -> dict[str, str | int]:
    """Choices that read an operand by vectors where that can be."""
    whole = _in_vectors(launch, name)
    folder = "vec4" if whole else "load"
    dtype = launch.operands[name].spec.dtype
    return {name: f"{folder}/{dtype}", f"{name.upper()}_SHIFT": 2 if whole else 0}


def _in_vectors(launch: Launch, name: str) -> bool:
    """Whether all heads of an operand begin at whole vectors of four."""
    spec = launch.operands[name].spec
    return all(n % 4 == 0 for n in (spec.offset, spec.shape[3], *spec.strides[:3]))
