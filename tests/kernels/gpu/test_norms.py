"""Norms of long rows, by more lanes than a row of a head has."""

import numpy as np
import pytest

from tests.ops.operands import tensor
from wgpu_backend.kernels import select
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.linear.activation_rounding import rms_norm_pair
from wgpu_backend.ops.linear.q8_rounding import from_planes
from wgpu_backend.ops.linear.q8_rounding import q8_values as decoded
from wgpu_backend.ops.reduce.norm import layer_norm, rms_norm, softmax
from wgpu_backend.ops.reduce.reduction import l2_norm
from wgpu_backend.testing import nmse, values_of

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("norm", "kwargs"),
    [
        (rms_norm, {"eps": 1e-5}),
        (layer_norm, {"eps": 1e-5}),
        (softmax, {}),
        (l2_norm, {"eps": 1e-5}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
@pytest.mark.parametrize("cols", [1023, 1024, 4099])
def test_norms_of_long_rows(eight_lanes, check, rng, norm, kwargs, cols):
    x = rng.standard_normal((3, cols)).astype("f4")
    check(eight_lanes, lambda ctx: norm(tensor(ctx, x), **kwargs), limit=1e-12)


@pytest.mark.parametrize(("cols", "threads"), [(992, None), (1024, 256)])
def test_long_rows_have_256_threads(eight_lanes, cols, threads):
    with Context(eight_lanes) as ctx:
        for node in (
            rms_norm(ctx.zeros(2, cols), eps=1e-5),
            rms_norm_pair(ctx.zeros(2, cols), eps=1e-5),
        ):
            taken = select(node.call.op, node.launch, eight_lanes.capabilities)
            assert taken.choices.get("WG") == threads


@pytest.mark.parametrize("shape", [(1, 32), (3, 96), (2, 4128)], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("planar", [False, True])
def test_a_norm_is_split_as_in_the_reference(eight_lanes, rng, shape, weighted, planar):
    x, w = 5 * rng.standard_normal(shape, "f4"), rng.standard_normal(shape[-1], "f4")

    def build(ctx):
        weight = tensor(ctx, w) if weighted else None
        return rms_norm_pair(tensor(ctx, x), weight, eps=1e-5, planar=planar)

    got, want = (values_of(executor, build) for executor in (eight_lanes, NumpyExecutor()))
    if planar:
        got, want = (from_planes(y).reshape(len(x), 2, -1, 12) for y in (got, want))
    for y in (got, want):
        assert y.shape == (shape[0], 2, shape[1] // 32, 12)
    assert nmse(decoded(got).sum(axis=1), decoded(want).sum(axis=1)) < 1e-9
    # The sums behind the quants are what products take for the values.
    tails = [y[..., 8:].view(np.float32) for y in (got, want)]
    assert nmse(tails[0][:, 0], tails[1][:, 0]) < 1e-5
