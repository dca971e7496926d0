"""F16 weights in textures: exponents counted from the smallest f16, and what does not fit."""

import numpy as np
import pytest

from tests.ops.operands import weight
from wgpu_backend.dtypes import F16
from wgpu_backend.errors import ModelError
from wgpu_backend.kernels.rasteriser.layouts import float_texture
from wgpu_backend.ml.context import Context

ALL = np.arange(1 << 16, dtype=np.uint16)
NEAR = ALL[np.abs(ALL.view(np.float16)) < 128]


def as_floats(codes):
    """What `shaders/kernels/rasteriser/float_texture/f16.wgsl` makes of F16."""
    words = (codes.astype(np.uint32) << 16).view(np.int32) >> 3
    return (words.view(np.uint32) & np.uint32(0x8FFFE000)).view(np.float32)


def test_every_f16_below_128_is_a_normal_f32_or_zero():
    codes = float_texture.rebase(NEAR.view(np.uint8).reshape(1, -1)).view(np.uint16)[0]
    made, wanted = as_floats(codes), NEAR.view(np.float16).astype(np.float64)
    np.testing.assert_array_equal(
        made.astype(np.float64) * 2.0 ** (2 * float_texture.RAISED), wanted
    )
    np.testing.assert_array_equal(np.signbit(made), np.signbit(wanted))
    assert np.abs(made[made != 0]).min() >= np.finfo(np.float32).tiny


@pytest.mark.parametrize("value", [128.0, -65504.0, np.inf, np.nan])
def test_larger_ones_do_not_fit(rng, value):
    rows = rng.standard_normal((5, 64)).astype("f2")
    assert float_texture.fit(rows.view(np.uint8))
    rows[3, 17] = value
    assert not float_texture.fit(rows.view(np.uint8))


def kept(executor, values):
    return weight(executor, *values.shape, F16, values.tobytes())


@pytest.mark.parametrize("n", [1, 9])
@pytest.mark.parametrize("largest", [127.94, 200.0])
def test_products_of_weights_that_fit_and_that_do_not(shuffling, rng, n, largest):
    values, x = rng.standard_normal((70, 96)).astype("f2"), rng.standard_normal((n, 96), "f4")
    values[3, 5] = largest
    matrix = kept(shuffling, values)
    with Context(shuffling) as ctx:
        got = matrix.mulmat(ctx.from_numpy(x)).numpy()
    np.testing.assert_allclose(got, x @ values.astype("f4").T, rtol=1e-5, atol=1e-4)
    assert bool(matrix.storage.handle[0].packed) == (largest < 128)


def test_rows_are_the_same_to_the_last_bit(shuffling):
    values = np.resize(NEAR.view(np.float16), (-(-len(NEAR) // 64), 64))
    matrix = kept(shuffling, values)
    with Context(shuffling) as ctx:
        got = matrix.rows(ctx.from_ints(range(len(values)))).numpy()
    np.testing.assert_array_equal(got.view(np.uint32), values.astype("f4").view(np.uint32))
    assert matrix.storage.handle[0].packed
    shuffling.free(matrix.storage)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_activations_far_from_one(shuffling, rng, scale):
    values = (rng.standard_normal((64, 64)) * 1e-6).astype("f2")  # subnormal
    x = (rng.standard_normal((1, 64)) * scale).astype("f4")
    matrix = kept(shuffling, values)
    with Context(shuffling) as ctx:
        got = matrix.mulmat(ctx.from_numpy(x)).numpy()
    want = x.astype("f8") @ values.astype("f8").T
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())
    shuffling.free(matrix.storage)


def test_a_value_that_is_no_number_is_refused(shuffling, rng):
    values = rng.standard_normal((64, 64)).astype("f2")
    values[63, 63] = np.inf
    with pytest.raises(ModelError, match=r"1 of 4096"):
        kept(shuffling, values)
