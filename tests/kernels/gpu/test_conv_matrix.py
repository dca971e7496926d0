"""Convolutions by matrix units: which launches take them, and their values."""

import dataclasses

import numpy as np
import pytest

from tests.ops.operands import tensor
from wgpu_backend.dtypes import BF16, F16, F32
from wgpu_backend.graph.capabilities import Capabilities, MatrixUnit
from wgpu_backend.kernels import select
from wgpu_backend.kernels.gpu import matrix
from wgpu_backend.kernels.gpu.conv_matrix import f16_pixels, magnitudes
from wgpu_backend.kernels.gpu.matrix import BLOCKS, pick_blocks
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.op import fusions
from wgpu_backend.testing import nmse, values_of

LIMIT = 5e-7  # eleven bits of values and weights; sums in f32
MATRIX = "kernels/gpu/conv_matrix"
DEVICE = Capabilities(
    f16=True,
    matrix=MatrixUnit(16, 16, 16, 32),
    max_workgroup_nbytes=48 << 10,
    max_workgroup_invocations=1024,
)
CASES = [
    (16, 32, ((1, 1), (1, 1), (1, 1))),
    (33, 96, ((2, 1), ((0, 1), (1, 0)), (1, 1))),
    (130, 64, ((1, 3), (2, 4), (2, 3))),
]


def convolved(x, w, dtype=F16, how=((1, 1), (1, 1), (1, 1)), **options):
    return lambda ctx: tensor(ctx, x).conv2d(tensor(ctx, w, dtype), *how, **options)


def taken(build, *, capabilities=DEVICE, exact=False):
    """Names of the ops that a graph has after the rule, and the shader of the last."""
    executor = NumpyExecutor(capabilities)
    executor.rules = fusions(["convolve_matrix"], exact=exact)
    with Context(executor) as ctx:
        recorded = ctx.record(build(ctx))
        steps = list(recorded.plan.steps)
        recorded.close()
    node, launch = steps[-1]
    shader = select(node.call.op, launch, capabilities).shader
    return [each.call.op.name for each, _ in steps], shader


def operands(rng, outputs=20, channels=64, size=(1, 7, 9)):
    x = rng.standard_normal((*size, channels), "f4")
    return x, rng.standard_normal((outputs, 3, 2, channels), "f4")


def test_convolutions_with_weights_of_sixteen_bits_take_units(rng):
    x, w = operands(rng)
    for dtype in (F16, BF16):
        names, shader = taken(convolved(x, w, dtype))
        assert names[-3:] == ["magnitudes", "f16_pixels", "convolve_matrix"]
        assert shader == MATRIX


def test_what_falls_back(rng):
    x, w = operands(rng)

    def last(build, **how):
        return taken(build, **how)[0][-1]

    assert last(convolved(x, w), exact=True) == "convolve"
    assert last(convolved(x, w, F32)) == "convolve"
    assert last(convolved(x, w[..., :32], groups=2)) == "convolve"
    assert last(convolved(*operands(rng, channels=48))) == "convolve"
    assert last(convolved(*operands(rng, outputs=15))) == "convolve"
    without = dataclasses.replace(DEVICE, matrix=None)
    assert last(convolved(x, w), capabilities=without) == "convolve"


@pytest.mark.parametrize("size", [4, 4096, 5000 * 4, 1024 * 256 * 4 + 8])
def test_parts_have_their_largest_magnitudes(rng, size):
    x = rng.standard_normal(size, "f4")
    x[size // 2 - 1], x[-1], x[-2] = -70, np.nan, -np.inf
    with Context(NumpyExecutor()) as ctx:
        found = magnitudes(tensor(ctx, x)).numpy()
    assert len(found) == min(-(-size // 4096), 256)
    assert found.max() == 70
    first = np.abs(x[: max(4096, -(-size // 4 // 256) * 4)])
    assert found[0] == first[np.isfinite(first)].max()


def rounded(x):
    """Values in f16, with a pixel of zeros and an exponent."""

    def build(ctx):
        node = tensor(ctx, x)
        return f16_pixels(node, magnitudes(node))

    return build


@pytest.mark.parametrize("scale", [1e9, 1e-9, 0])
def test_a_tensor_fits_f16_by_one_power_of_two(rng, scale):
    x = (rng.standard_normal((2, 3, 5, 8)) * scale).astype("f4")
    found = values_of(NumpyExecutor(), rounded(x)).astype("f4")
    values, zeros, exponent = np.split(found, [x.size, x.size + 8])
    assert not zeros.any()
    assert not exponent[1:].any()
    assert scale == 0 or 2**14 <= np.abs(values).max() < 2**15
    np.testing.assert_allclose(np.ldexp(values, int(exponent[0])), x.ravel(), rtol=2**-10)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(1, 1, 8), (7, 9, 64), (1000, 9, 4)])
def test_devices_round_a_tensor_alike(units, rng, size):
    x = rng.standard_normal(size, "f4") * np.float32(3e5)
    np.testing.assert_array_equal(
        values_of(units, rounded(x)), values_of(NumpyExecutor(), rounded(x))
    )


@pytest.fixture
def fused(units, monkeypatch):
    """The executor with units, with the rule."""
    monkeypatch.setattr(units, "rules", fusions(["convolve_matrix"], exact=False))
    return units


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(("outputs", "channels", "how"), CASES, ids=str)
def test_a_convolution_is_right(fused, rng, outputs, channels, how):
    x, w = operands(rng, outputs, channels, (2, 9, 11))
    # Neither large values nor small ones leave f16.
    x *= np.float32(1e9 if outputs == 33 else 1e-9)
    build = convolved(x, w, F16, how)
    assert taken(build, capabilities=fused.capabilities)[1] == MATRIX
    error = nmse(values_of(fused, build), values_of(NumpyExecutor(), build))
    # Sums in f32 of values that were not rounded have some 1e-13.
    assert 1e-9 < error < LIMIT


@pytest.mark.gpu
@pytest.mark.slow
def test_the_largest_blocks_are_right(fused, rng, monkeypatch):
    monkeypatch.setattr(matrix, "ENOUGH_GROUPS", 1)
    x, w = operands(rng, 70, 32, (1, 8, 16))
    assert pick_blocks(70, 128, fused.capabilities) == BLOCKS[0]
    build = convolved(x, w)
    assert nmse(values_of(fused, build), values_of(NumpyExecutor(), build)) < LIMIT


@pytest.mark.gpu
@pytest.mark.slow
def test_zeros_and_what_is_not_finite(fused, rng):
    x, w = operands(rng)
    assert not values_of(fused, convolved(np.zeros_like(x), w)).any()
    x[0, 3, 4, 5] = np.nan
    found = values_of(fused, convolved(x, w))
    assert np.isnan(found[0, 3, 4]).all()
    # Other pixels keep their digits.
    x[0, 3, 4, 5] = 0
    wanted = values_of(NumpyExecutor(), convolved(x, w))
    assert nmse(found[0, 6], wanted[0, 6]) < LIMIT
    assert np.isfinite(found[0, 6, 0]).all()
