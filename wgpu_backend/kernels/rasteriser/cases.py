"""Self-test cases of this family's fusion rules."""

from __future__ import annotations

import numpy as np

from wgpu_backend.kernels.cases import (
    LARGEST_ERROR,
    ROUNDING_ERROR,
    Context,
    FusionCase,
    Tensor,
    attention_into_product,
    by_expert,
    f16_weight,
    normal,
)


def _norm_products(context: Context, rng: np.random.Generator) -> Tensor:
    """Build a product, and two joined ones, of one norm."""
    normed = normal(context, rng, 3, 320).rms_norm(normal(context, rng, 320), eps=1e-5)
    both = f16_weight(context, rng, 64, 320)
    gate, up = both.slice(0, 0, 32), both.slice(0, 32, 64)
    joined = gate.mulmat(normed).swiglu(up.mulmat(normed))
    return f16_weight(context, rng, 40, 320).mulmat(normed).concat(joined, axis=1)


def _weighted_sum(context: Context, rng: np.random.Generator) -> Tensor:
    """Build a residual that is read, and the product of its norm."""
    total = f16_weight(context, rng, 96, 64).linear(
        normal(context, rng, 3, 64), normal(context, rng, 3, 96)
    )
    normed = total.rms_norm(normal(context, rng, 96), eps=1e-5)
    return f16_weight(context, rng, 40, 96).mulmat(normed).concat(total, axis=1)


CASES = (
    FusionCase("norm_weighted", LARGEST_ERROR, _norm_products),
    FusionCase("linear_add_weighted", LARGEST_ERROR, _weighted_sum, before=("norm_weighted",)),
    FusionCase("paged_attention_q8", ROUNDING_ERROR, attention_into_product, before=("linear_q8",)),
    FusionCase(
        "linear_by_expert_q8",
        ROUNDING_ERROR,
        by_expert,
        before=("linear_by_expert_add", "linear_by_expert_tiles"),
    ),
)
