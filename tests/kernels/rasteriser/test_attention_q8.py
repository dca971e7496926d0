"""Attention whose result leaves in eight bits."""

import numpy as np
import pytest

from tests.ops.test_rope_attention import RULES, layer, ran
from wgpu_backend.dtypes import Q4_0


@pytest.fixture
def seed(rng):
    """A number from which the same operands are made again."""
    return int(rng.integers(1 << 30))


@pytest.mark.parametrize(
    "rules", [["linear_q8", "paged_attention_q8", *RULES], [*RULES, "linear_q8"]]
)
def test_leaves_in_eight_bits_for_a_product(shuffling, seed, monkeypatch, rng, rules):
    data = rng.integers(0, 100, (40, 14 * 64 // 32 * 18), np.uint8)

    def build(context):
        (y,) = layer(seed)(context)
        weight = context.from_bytes(Q4_0, data.tobytes(), 40, 14 * 64)
        return [weight.mulmat(y.reshape(1, -1))]

    fused, got = ran(shuffling, monkeypatch, rules, build, exact=False)
    _, want = ran(shuffling, monkeypatch, ["linear_q8"], build, exact=False)
    assert "rope_attention" in fused
    assert "q8_activations" not in fused
    np.testing.assert_array_equal(got[0], want[0])
