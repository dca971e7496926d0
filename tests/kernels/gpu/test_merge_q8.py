"""Ranges of attention joined and rounded in one op, and the rule that makes it."""

import dataclasses

import numpy as np
import pytest

from tests.ops.fused import ran
from tests.ops.operands import tensor
from wgpu_backend.dtypes import Q4_0
from wgpu_backend.errors import DeviceError, ShapeError
from wgpu_backend.kernels.gpu.attention import attention_merge_f16, attention_merge_q8
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.attention.paged import attention_merge
from wgpu_backend.ops.linear.activation_rounding import EVERY_PRODUCT
from wgpu_backend.ops.linear.f16_groups import f16_values as decoded_f16
from wgpu_backend.ops.linear.q8_rounding import from_planes
from wgpu_backend.ops.linear.q8_rounding import q8_values as decoded
from wgpu_backend.testing import nmse, values_of

pytestmark = pytest.mark.gpu
# A value between two quants may be rounded to either: a 127th of the largest of its group.
ROUNDING = 1e-5


def ranges(rng, tokens, heads, splits, cols):
    x = rng.standard_normal((tokens, heads, splits, cols + 4)).astype("f4")
    x[..., cols + 1] = np.abs(x[..., cols + 1]) + 0.5
    return x


@pytest.mark.parametrize(
    "shape", [(1, 4, 32, 128), (3, 5, 3, 32), (1, 1, 1, 64), (2, 3, 17, 96)], ids=str
)
@pytest.mark.parametrize("planar", [False, True])
def test_it_is_the_merge_rounded(eight_lanes, rng, shape, planar):
    x = ranges(rng, *shape)
    got, want = (
        decoded(
            from_planes(values_of(e, lambda ctx: attention_merge_q8(tensor(ctx, x), planar=planar)))
        )
        for e in (eight_lanes, NumpyExecutor())
    )
    assert got.shape == (shape[0], shape[1] * shape[3])
    assert nmse(got, want) <= ROUNDING


@pytest.mark.parametrize("nibbles", [False, True])
def test_it_is_the_merge_in_f16(eight_lanes, rng, nibbles):
    x = ranges(rng, 3, 5, 3, 96)
    how = {"planar": not nibbles, "nibbles": nibbles}
    got, want = (
        decoded_f16(values_of(e, lambda ctx: attention_merge_f16(tensor(ctx, x), **how)), nibbles)
        for e in (eight_lanes, NumpyExecutor())
    )
    assert got.shape == (3, 5 * 96)
    assert nmse(got, want) <= 1e-7


@pytest.mark.parametrize(
    ("changes", "rules", "ops", "limit"),
    [
        (
            {"integer_dot": True},
            ["linear_q16", "attention_merge_q16"],
            ["attention_merge_q16", "linear q16"],
            1e-9,
        ),
        (
            {"integer_dot": False},
            ["linear_f16_groups", "attention_merge_f16"],
            ["attention_merge_f16", "linear f16_nibbles"],
            1e-7,
        ),
        (
            {"rounded": EVERY_PRODUCT},
            ["linear_q8", "attention_merge_q8"],
            ["attention_merge_q8", "linear q8"],
            ROUNDING,
        ),
    ],
    ids=["sixteen bits", "f16", "eight bits"],
)
def test_products_that_round_columns_read_it(
    eight_lanes, rng, monkeypatch, changes, rules, ops, limit
):
    x = ranges(rng, 1, 4, 5, 64)
    data = rng.integers(0, 100, (40, 8 * 18), np.uint8)

    def build(ctx):
        weight = ctx.from_bytes(Q4_0, data.tobytes(), 40, 256)
        return [weight.mulmat(attention_merge(tensor(ctx, x)).reshape(1, 256))]

    eight_lanes = eight_lanes.as_if(dataclasses.replace(eight_lanes.capabilities, **changes))
    fused, got = ran(eight_lanes, monkeypatch, rules, build, exact=False)
    _, want = ran(eight_lanes, monkeypatch, rules[:1], build, exact=False)
    assert fused == ops
    assert nmse(got[0], want[0]) <= limit


def test_heads_that_are_no_whole_groups_are_refused(eight_lanes):
    with (
        Context(eight_lanes) as ctx,
        pytest.raises(ShapeError, match=r"are 40, needs a multiple of 32"),
    ):
        attention_merge_q8(ctx.zeros(1, 2, 3, 44))


def test_other_devices_have_no_kernel(executors):
    with Context(executors("baseline")) as ctx:
        y = attention_merge_q8(ctx.zeros(1, 2, 3, 36))
        with pytest.raises(DeviceError, match=r"use attention_merge and q8_activations"):
            y.numpy()
