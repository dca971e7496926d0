"""Attention over plain keys: heads of queries that share keys, and neighbouring tokens, a tile."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.node import Launch
from wgpu_backend.kernels.rasteriser.attention import LANE_SUMS, lane_tile
from wgpu_backend.kernels.rasteriser.capabilities import LANES, shuffles
from wgpu_backend.kernels.rasteriser.folder import FOLDER
from wgpu_backend.ops.attention.paged_kernels import Rows
from wgpu_backend.ops.attention.scaled_kernels import by_queries, in_vectors
from wgpu_backend.ops.check import MAX_GROUPS


def attend(launch: Launch, capabilities: Capabilities) -> Launch:
    """Attend by lanes that shuffle, or by queries of one head in work groups of eight."""
    vectors = in_vectors(launch, "k") and in_vectors(launch, "v")
    found = _by_lanes(launch) if shuffles(capabilities) and vectors else None
    return found or by_queries(launch, LANES)


def _by_lanes(launch: Launch) -> Launch | None:
    """Return a launch that takes heads of queries together; None for too many sums or tiles."""
    batch, tokens, heads, _ = launch.operands["q"].spec.shape
    keys, v = launch.operands["k"].spec, launch.operands["v"].spec
    rows = Rows(tokens, heads // keys.shape[2], sequences=0)
    step, choices = lane_tile(rows, v.shape[3] // 4)
    tiles = max(-(-tokens * rows.group // max(step, 1)), 1)
    if v.shape[3] > 4 * LANES * LANE_SUMS or tiles > MAX_GROUPS:
        return None
    return replace(
        launch,
        shader=f"{FOLDER}/scaled_attention",
        groups=(keys.shape[2], tiles, max(batch, 1) * launch.count("splits")),
        params={**launch.params, "step": step},
        choices={**launch.choices, **choices},
    )
