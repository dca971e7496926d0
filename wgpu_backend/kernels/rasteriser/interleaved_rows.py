"""Rows of a weight in buffers, interleaved over work groups so that a lane reads on in memory.

A lane's rows of consecutive work groups lie one behind the other, see
``lib/interleaved_rows.wgsl`` of the family. A CPU's prefetcher engages on runs that are read in
order; rows that are short end before it does, unless the next one follows in memory.
"""

from __future__ import annotations

from math import gcd

from wgpu_backend.graph.node import Launch
from wgpu_backend.kernels.rasteriser.capabilities import LANES

SHORT_NBYTES = 768  # of a row: below this the hardware prefetcher does not engage
DEEPEST = 8  # rows: 14 KiB of 896 values in f16
MANY = 64  # work groups of which the surplus of a last, unfilled run is small


def interleave_depth(rows: int, per_lane: int) -> int:
    """Return how many consecutive work groups have a lane's rows adjacent in memory.

    Parameters
    ----------
    rows : int
        Rows of y.
    per_lane : int
        Rows of a lane in one work group.

    Returns
    -------
    int
        So that no work group is without rows, or few of many are.
    """
    groups = -(-rows // (LANES * per_lane))
    return DEEPEST if groups >= MANY else gcd(groups, DEEPEST)


def interleaved_groups(rows: int, per_lane: int, depth: int) -> int:
    """Return the work groups for `rows`, a multiple of `depth`."""
    return -(-rows // (LANES * per_lane * depth)) * depth


def has_short_rows(launch: Launch) -> bool:
    """Return whether a work group without interleaved rows should touch its weights first."""
    spec = launch.operands["weights"].spec
    return spec.dtype.nbytes(spec.shape[-1]) < SHORT_NBYTES
