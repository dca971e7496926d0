"""Tile sizes of attention over plain keys: a tile is neighbouring tokens of one head."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.node import Launch

# Threads of a work group.
WIDTH = 64
# Tokens that share the keys that a work group reads.
QUERIES = 4
# Vectors of four sums that one lane may hold.
LANE_VECTORS = 32
# Workgroup memory for queries, of the 16 KiB that every device has.
QUERY_NBYTES = 12288
# Sizes of queries are rounded up to so many vectors: the fewer sizes, the fewer kernels are
# compiled.
QUERY_STEP = 16


def select_tiles(launch: Launch, _: Capabilities) -> Launch:
    """Choose the tile of queries that a work group takes."""
    return by_queries(launch, WIDTH)


def by_queries(launch: Launch, width: int) -> Launch:
    """Return a launch that groups neighbouring queries of one head, `width` threads a group."""
    batch, tokens, heads, cols = launch.operands["q"].spec.shape
    lane_vec4s = max(-(-launch.operands["v"].spec.shape[3] // (4 * width)), 1)
    vec4s = -(-cols // (4 * QUERY_STEP)) * QUERY_STEP
    fitting = min(LANE_VECTORS // lane_vec4s, QUERY_NBYTES // (16 * vec4s))
    # One or four: each number would be a kernel to compile.
    queries = 1 if tokens == 1 or fitting < QUERIES else QUERIES
    tiles = max(-(-tokens // queries), 1)
    return replace(
        launch,
        groups=(max(heads, 1), tiles, max(batch, 1) * launch.count("splits")),
        choices={
            **launch.choices,
            "WG": width,
            "QUERIES": queries,
            "LANE_VEC4S": lane_vec4s,
            "K_VEC4S": vec4s,
            "TAIL": cols % 4 != 0,
            **_reading(launch, "k"),
            **_reading(launch, "v"),
        },
    )


def _reading(launch: Launch, name: str) -> dict[str, str | int]:
    """Return the shader choices that read an operand by vectors, where that is possible."""
    whole = in_vectors(launch, name)
    folder = "formats/vec4" if whole else "formats/load"
    dtype = launch.operands[name].spec.dtype
    return {name: f"{folder}/{dtype}", f"{name.upper()}_SHIFT": 2 if whole else 0}


def in_vectors(launch: Launch, name: str) -> bool:
    """Return whether all heads of an operand begin at whole vectors of four."""
    spec = launch.operands[name].spec
    return all(n % 4 == 0 for n in (spec.offset, spec.shape[3], *spec.strides[:3]))
