"""Products by matrix units, and the rounding of rows for them."""

import dataclasses

import numpy as np
import pytest

from tests.ops.operands import tensor, weight, weight_bytes
from wgpu_backend.dtypes import BF16, F16, F32, MXFP4, Q2_K, Q4_0, Q4_K, Q5_1, Q6_K, Q8_0
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph.capabilities import Capabilities, MatrixUnit
from wgpu_backend.kernels.gpu.matrix import BLOCKS, FORMATS, IN_ROWS, f16_rows, pick_blocks
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.linear.attributes import Epilogue
from wgpu_backend.ops.linear.f16_groups import f16_row_values
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.testing import nmse, values_of

OF_F16 = 1e-6  # eleven bits of weights and columns, sums in f32
UNIT = MatrixUnit(16, 16, 16, 32)
DEVICE = Capabilities(
    f16=True, matrix=UNIT, max_workgroup_nbytes=32 << 10, max_workgroup_invocations=1024
)


@pytest.mark.parametrize("shape", [(3, 64), (1, 32), (2, 5, 96), (200, 256)])
def test_rows_are_rounded_as_the_reference_says(check, executors, rng, shape):
    wide = executors("wide")
    if not wide.capabilities.f16:
        pytest.skip("needs arithmetic in f16")
    x = rng.standard_normal(shape).astype("f4") * np.exp(9 * rng.standard_normal((*shape[:-1], 1)))
    x = x.astype("f4")
    x[(0,) * (len(shape) - 1)] = 0
    check(wide, lambda ctx: f16_rows(tensor(ctx, x)), limit=0)


def test_rows_keep_eleven_bits_of_any_magnitude(rng):
    with Context(NumpyExecutor()) as ctx:
        for scale in (1e-20, 1e-3, 1.0, 1e6, 1e30):
            x = (rng.standard_normal((4, 64)) * scale).astype("f4")
            found = f16_row_values(np.asarray(f16_rows(tensor(ctx, x)).numpy()))
            largest = np.abs(x).max(axis=-1, keepdims=True)
            assert (np.abs(found - x) <= largest * 2.0**-11).all()


@pytest.mark.parametrize(("m", "n", "k"), [(70, 37, 256), (130, 65, 512), (33, 9, 288)])
@pytest.mark.parametrize("dtype", [Q4_0, Q5_1, Q8_0, Q2_K, Q4_K, Q6_K, F16, BF16], ids=str)
def test_a_product_is_right(units, rng, dtype, m, n, k):
    k = -(-k // dtype.block) * dtype.block
    x = rng.standard_normal((n, k), "f4")
    x[0] *= 1e5
    data, addend = weight_bytes(rng, m, k, dtype, 1 / 16), rng.standard_normal((n, m), "f4")

    def product(ctx):
        w = weight(ctx._executor, m, k, dtype, data)
        return linear(w, f16_rows(tensor(ctx, x)), tensor(ctx, addend), prologue=IN_ROWS)

    got, wanted = values_of(units, product), values_of(NumpyExecutor(), product)
    assert max(nmse(got[row], wanted[row]) for row in range(n)) < OF_F16


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_halves_are_joined(units, rng, activation):
    x, data = rng.standard_normal((40, 256), "f4"), weight_bytes(rng, 140, 256, Q8_0, 1 / 64)

    def product(ctx):
        w, rows = weight(ctx._executor, 140, 256, Q8_0, data), f16_rows(tensor(ctx, x))
        return linear(w, rows, prologue=IN_ROWS, epilogue=Epilogue(activation))

    assert nmse(values_of(units, product), values_of(NumpyExecutor(), product)) < 3 * OF_F16


def test_rows_of_another_length_are_refused(rng):
    with Context(NumpyExecutor()) as ctx:
        w = weight(ctx._executor, 8, 64, Q8_0, weight_bytes(rng, 8, 64, Q8_0, 1 / 16))
        with pytest.raises(ShapeError, match="rows of x have 40 values, rows of weight have 64"):
            linear(w, f16_rows(tensor(ctx, np.ones((2, 32), "f4"))), prologue=IN_ROWS)
        with pytest.raises(DTypeError, match="x is f32"):
            linear(w, tensor(ctx, np.ones((2, 72), "f4")), prologue=IN_ROWS)
        with pytest.raises(ShapeError, match="33 values, needs a multiple of 32"):
            f16_rows(tensor(ctx, np.ones((2, 33), "f4")))


def test_formats_with_scales_of_any_size_are_left_out():
    assert F32 not in FORMATS
    assert MXFP4 not in FORMATS
    assert {Q4_0, Q6_K, F16, BF16} <= {*FORMATS}


@pytest.mark.parametrize(
    ("m", "n", "columns"), [(14336, 512, 128), (4096, 512, 128), (8192, 64, 64), (1024, 9, 16)]
)
def test_blocks_fit_the_columns_and_keep_a_device_busy(m, n, columns):
    blocks = pick_blocks(m, n, DEVICE)
    assert blocks.tile(UNIT).columns == columns
    assert blocks.nbytes(UNIT) <= DEVICE.max_workgroup_nbytes
    small = dataclasses.replace(DEVICE, max_workgroup_nbytes=16 << 10)
    assert pick_blocks(m, n, small).nbytes(UNIT) <= 16 << 10
    assert pick_blocks(m, n, DEVICE, split=True) in BLOCKS
