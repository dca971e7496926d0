"""A block of an image model by matrix units: its convolution, products and attention."""

import numpy as np
import pytest

from tests.ops.operands import tensor
from wgpu_backend.dtypes import F16
from wgpu_backend.graph.capabilities import Capabilities, MatrixUnit
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.op import fusions
from wgpu_backend.testing import nmse, values_of

SIDE, CHANNELS, HEADS = 9, 64, 4
NAMES = ("convolve_matrix", "f16_rows", "rounded_attention", "scaled_attention")
# The three products share their rounded rows.
WANTED = {"convolve_matrix": 1, "f16_rows": 1, "rounded_attention": 1}
LIMIT = 1e-6  # eleven bits in three layers; sums in f32
DEVICE = Capabilities(
    f16=True,
    matrix=MatrixUnit(16, 16, 16, 32),
    max_workgroup_nbytes=48 << 10,
    max_workgroup_invocations=1024,
)


def block(rng):
    """Build norm, convolution, attention and a residual sum, as in a UNet."""
    x = rng.standard_normal((1, SIDE, SIDE, CHANNELS), "f4")
    kernel = rng.standard_normal((CHANNELS, 3, 3, CHANNELS), "f4") / 24
    projections = rng.standard_normal((3, CHANNELS, CHANNELS), "f4") / 8

    def build(ctx):
        start = tensor(ctx, x)
        seen = start.group_norm(8).silu().conv2d(tensor(ctx, kernel, F16), paddings=(1, 1))
        rows = seen.reshape(SIDE * SIDE, CHANNELS)
        q, k, v = (
            tensor(ctx, p, F16).mulmat(rows).reshape(SIDE * SIDE, HEADS, CHANNELS // HEADS)
            for p in projections
        )
        y = q.scaled_dot_product_attention(k, v, scale=0.25)
        return start + y.reshape(1, SIDE, SIDE, CHANNELS)

    return build


def with_units(build, capabilities):
    """What of a graph runs on the units of a device."""
    executor = NumpyExecutor(capabilities)
    executor.rules = fusions(exact=False)
    with Context(executor) as ctx:
        recorded = ctx.record(build(ctx))
        names = [node.call.op.name for node, _ in recorded.plan.steps]
        recorded.close()
    return {name: names.count(name) for name in NAMES if name in names}


def test_a_block_takes_units_for_all_that_multiplies(rng):
    assert with_units(block(rng), DEVICE) == WANTED


@pytest.mark.gpu
@pytest.mark.slow
def test_a_block_is_right(units, rng, monkeypatch):
    build = block(rng)
    assert with_units(build, units.capabilities) == WANTED
    monkeypatch.setattr(units, "rules", fusions(exact=False))
    found, wanted = values_of(units, build), values_of(NumpyExecutor(), build)
    assert np.isfinite(found).all()
    assert 1e-10 < nmse(found, wanted) < LIMIT
