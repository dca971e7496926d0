"""Paged attention with a lane that scores positions and sums values alone."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.node import Launch
from wgpu_backend.kernels.rasteriser.capabilities import LANES, shuffles
from wgpu_backend.kernels.rasteriser.folder import FOLDER, LIB
from wgpu_backend.ops.attention.paged_kernels import Rows, count_rows, most, use_tiles
from wgpu_backend.ops.attention.rope_attention import NORMS, has_bindings, more_bindings
from wgpu_backend.ops.reduce.norm import reducing_rows

LANE_POSITIONS = 4  # positions that each lane scores at once
LANE_SUMS = 16  # vectors of results that each of them holds
# Tiles have as many rows as one of these says: each is a kernel of its own, which takes a while to
# compile.
LANE_ROWS = (1, 2, 4, 8)


def attend(launch: Launch, capabilities: Capabilities) -> Launch:
    """Attend with tiles where lanes shuffle, else a row a work group."""
    return by_lanes(launch) if shuffles(capabilities) else _plain(launch)


def attend_prepared(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Attend after norms, rotation and cache write; None where buffers are too few."""
    if not has_bindings(capabilities, more_bindings(launch)):
        return None
    launch = by_lanes(launch)
    normed = any(name in launch.operands for name in NORMS)
    return reducing_rows(launch, f"{LIB}/row_subgroup") if normed else launch


def by_lanes(launch: Launch) -> Launch:
    """Return the launch of the kernel for lanes that shuffle."""
    rows = count_rows(launch)
    step, choices = lane_tile(rows, launch.count("v_vec4s"))
    return use_tiles(replace(launch, shader=f"{FOLDER}/attention"), rows, step, choices)


def lane_tile(rows: Rows, v_vec4s: int) -> tuple[int, dict[str, str | int]]:
    """Return the rows of a tile, and the choices, of kernels with the family's `lane_tile`."""
    lane_vec4s = -(-v_vec4s // LANES)
    step = rows.step(most(LANE_ROWS, LANE_SUMS // lane_vec4s))
    return step, {
        "WG": LANES,
        "ROWS": next(n for n in LANE_ROWS if n >= step),
        "POSITIONS": LANE_POSITIONS,
        "LANE_VEC4S": lane_vec4s,
    }


def _plain(launch: Launch) -> Launch:
    """Return a launch of one row a work group; tiles in workgroup memory take 10 s to compile."""
    choices: dict[str, str | int] = {
        "WG": LANES,
        "LANE_VEC4S": -(-launch.count("v_vec4s") // LANES),
        "Q_SIZE": launch.operands["q"].spec.shape[2],
    }
    plain = replace(launch, shader=f"{FOLDER}/attention_plain")
    return use_tiles(plain, count_rows(launch), 1, choices)
