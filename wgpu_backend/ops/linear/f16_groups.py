"""How groups of 32 values lie that are rounded to f16, for products of few columns."""

from __future__ import annotations

from wgpu_backend.dtypes import F16, Q4_0, Q4_1, Q4_K, Q6_K, U32, DType
from wgpu_backend.graph.spec import Shape, Spec
from wgpu_backend.ops.linear.q8 import FORMATS

WORDS = 20  # of a group: sixteen pairs, its scale, two sums, and its squares
PLANES = 5  # that these may be spread over, a vector of four each
WEIGHTS = (*FORMATS, F16)  # formats that are multiplied with them
NIBBLES = (Q4_0, Q4_1, Q4_K)  # formats whose bytes have the quants of two values
BESIDE_NIBBLES = (Q6_K,)  # which share rows with these in mixes, and take them as they are


def is_planar(dtype: DType) -> bool:
    """Whether products with weights of a format want planes: lanes take whole groups of blocks."""
    return dtype != F16


def f16_spec(rows: Shape, groups: int, planar: bool) -> Spec:
    """Spec of rows in f16, see `f16_activations`."""
    if planar:
        return Spec.dense((PLANES, *rows, groups, WORDS // PLANES), U32)
    return Spec.dense((*rows, groups, WORDS), U32)
