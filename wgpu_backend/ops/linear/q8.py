"""Formats of weights that have products with activations in eight bits.

Sums are of integers, by groups of 32. `q8_activations` rounds a tensor once, and each product of it
is then two to ten times as fast as with f32. A norm before the product has two parts: `q8_weighted`
applies its weight, the product its factor.
"""

from __future__ import annotations

from wgpu_backend.dtypes import (
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    Q2_K,
    Q3_K,
    Q4_0,
    Q4_1,
    Q4_K,
    Q5_0,
    Q5_1,
    Q5_K,
    Q6_K,
    Q8_0,
)
from wgpu_backend.graph.node import Node
from wgpu_backend.ops.linear.q8_rounding import GROUP as GROUP
from wgpu_backend.ops.linear.q8_rounding import WORDS as WORDS
from wgpu_backend.ops.linear.q8_rounding import q8_activations as q8_activations
from wgpu_backend.ops.linear.q8_rounding import q8_weighted as q8_weighted
from wgpu_backend.ops.linear.q8_rounding import rounded_spec as rounded_spec

FORMATS = (
    Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4,
)  # fmt: skip
# The order of the words of x: group by group, or plane by plane.
ROW, PLANAR = "lib/q8/packed_column", "lib/q8/planar_column"


def fits_q8(weight: Node) -> bool:
    """Return whether a weight is a dense matrix in a format with integer products."""
    spec = weight.spec
    return spec.dtype in FORMATS and spec.is_dense and len(spec.shape) == 2
