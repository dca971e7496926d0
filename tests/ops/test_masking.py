"""Logits with a mask over them, and the token that is chosen of them."""

import numpy as np
import pytest

from wgpu_backend.dtypes import U32
from wgpu_backend.errors import ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ops.reference import get_reference
from wgpu_backend.ops.sampling.host import SamplingOptions, make_sampling_params
from wgpu_backend.ops.sampling.masking import mask_logits


@pytest.mark.parametrize("shape", [(1, 1), (3, 31), (2, 33), (4, 300)])
def test_a_bit_keeps_a_logit_and_its_lack_rules_it_out(any_gpu, rng, shape):
    rows, cols = shape
    x = rng.standard_normal(shape).astype("f4")
    mask = rng.integers(0, 1 << 32, (rows, -(-cols // 32)), np.uint32)
    with Context(any_gpu) as context:
        # Rows of a larger tensor, as those of a state are.
        wide = context.from_numpy(np.concatenate([x, x]))[:rows]
        found = mask_logits(wide, context.from_numpy(mask, U32)).numpy()
    for row, col in np.ndindex(*shape):
        there = mask[row, col // 32] >> (col % 32) & 1
        assert found[row, col] == (x[row, col] if there else -np.inf)
    np.testing.assert_array_equal(found, get_reference("mask_logits")(x, mask))


@pytest.mark.parametrize("options", [SamplingOptions(temperature=0), SamplingOptions(top_k=5)])
def test_what_is_ruled_out_is_never_chosen(any_gpu, rng, options):
    x = np.tile(rng.standard_normal(100).astype("f4"), (32, 1))
    mask = np.zeros((32, 4), np.uint32)
    mask[:, 1] = 0b101  # tokens 32 and 34
    with Context(any_gpu) as context:
        kept = mask_logits(context.from_numpy(x), context.from_numpy(mask, U32))
        draws = context.from_numpy(np.arange(32, dtype=np.uint32) << 27, U32)
        params = context.from_numpy(np.tile(make_sampling_params(options).array(), (32, 1)))
        k = 1 if options.greedy else 5
        found = kept.sample(kept.top_k(k=k), params, draws).numpy()
    assert {*found.tolist()} <= {32, 34}
    assert options.greedy or len({*found.tolist()}) == 2


def test_a_mask_has_a_bit_for_each_column(any_gpu):
    with (
        Context(any_gpu) as context,
        pytest.raises(ShapeError, match=r"mask is \(2, 1\), x is \(2, 33\), needs .* \(2, 2\)"),
    ):
        mask_logits(context.zeros(2, 33), context.zeros(2, 1, dtype=U32))
