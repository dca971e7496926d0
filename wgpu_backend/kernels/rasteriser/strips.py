"""Rows of a weight for lanes of a rasteriser, in strips that memory is foreseen along.

A work group takes a row of every strip, see ``lib/strip.wgsl`` of the family. Cores fetch ahead
what is read in order; where rows are short, the next has to follow in memory, or they start anew
with each.
"""

from __future__ import annotations

from math import gcd

from wgpu_backend.graph.node import Launch
from wgpu_backend.kernels.rasteriser.capabilities import LANES

SHORT_NBYTES = 768  # of a row: shorter ones are over before a core foresees them
LONGEST = 8  # rows: 14 KiB of 896 values in f16
MANY = 64  # work groups of which the surplus of a last, unfilled set of strips is small


def strip_length(rows: int, per_lane: int) -> int:
    """Rows of a strip.

    Parameters
    ----------
    rows : int
        Rows of y.
    per_lane : int
        Of a lane in a work group: it goes along as many strips.

    Returns
    -------
    int
        So that no work group is without rows, or few of many are.
    """
    groups = -(-rows // (LANES * per_lane))
    return LONGEST if groups >= MANY else gcd(groups, LONGEST)


def strip_groups(rows: int, per_lane: int, length: int) -> int:
    """Work groups for some rows: of each set of strips all."""
    return -(-rows // (LANES * per_lane * length)) * length


def has_short_rows(launch: Launch) -> bool:
    """Whether a work group that goes along no strips does well to touch its weights beforehand."""
    spec = launch.operands["weights"].spec
    return spec.dtype.nbytes(spec.shape[-1]) < SHORT_NBYTES
