"""Weights whose rows lie in textures: their layout, who reads them there, and who does not."""

import numpy as np
import pytest

from tests.ops.operands import weight
from wgpu_backend.device.wgsl.module import load
from wgpu_backend.dtypes import BF16, F16, F32, Q8_0
from wgpu_backend.graph.capabilities import (
    MAX_TEXEL_ROWS,
    ROW_TEXELS,
    TEXEL_NBYTES,
    TEXEL_ROW_NBYTES,
)
from wgpu_backend.graph.spec import Spec
from wgpu_backend.kernels import select_layout
from wgpu_backend.kernels.rasteriser.layouts.float_texture import (
    RAISED,
    TILE_ROWS,
    interleave,
    layout,
)
from wgpu_backend.kernels.rasteriser.textures import read_by
from wgpu_backend.ml.context import Context


def f16_rows(rng, rows, cols):
    return rng.standard_normal((rows, cols)).astype("f2")


def kept(executor, values):
    return weight(executor, *values.shape, F16, values.tobytes())


def weights_nbytes(executor):
    uses = executor.device.memory_report().uses
    return sum(use.nbytes for use in uses if use.purpose == "weights")


def texel(texture, cols, row, t):
    """Texel of a row as `shaders/kernels/rasteriser/lib/float_texture.wgsl` counts them."""
    place = (row // TILE_ROWS * cols + t) * TILE_ROWS + row % TILE_ROWS
    return texture.reshape(-1, TEXEL_NBYTES)[place]


@pytest.mark.parametrize("rows", [1, 3, 63, 64, 65, 300])
@pytest.mark.parametrize("texels", [4, 12, 260])
def test_rows_stand_side_by_side_texel_by_texel(rng, rows, texels):
    data = rng.integers(0, 256, (rows, texels * TEXEL_NBYTES), np.uint8)
    texture = interleave(data)
    assert texture.shape == (-(-rows // TILE_ROWS), TILE_ROWS * data.shape[1])
    for row in {0, rows // 2, rows - 1}:
        for t in (0, 3, texels - 1):
            expected = data[row, t * TEXEL_NBYTES : (t + 1) * TEXEL_NBYTES]
            assert (texel(texture, texels, row, t) == expected).all()


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize("cols", [32, 96, 896])
def test_steps_of_rows_are_whole_rows_of_texels(shuffling, dtype, cols):
    packed = select_layout(Spec.dense((3000, cols), dtype), shuffling.capabilities, rounded=False)
    assert packed.step_rows * dtype.nbytes(cols) % TEXEL_ROW_NBYTES == 0
    assert (
        packed.nbytes(packed.most_rows(shuffling.capabilities)) <= MAX_TEXEL_ROWS * TEXEL_ROW_NBYTES
    )
    assert packed.nbytes(packed.step_rows) == packed.step_rows * dtype.nbytes(cols)


def test_shaders_are_given_the_numbers_of_the_layout():
    text = load("ops/index/rows_quant", read_by(layout(F16, 64), "weights", "source")).text
    assert f"const TILE_ROWS: u32 = {TILE_ROWS}u;" in text
    assert f"const TEXEL_ROW_BITS: u32 = {ROW_TEXELS.bit_length() - 1}u;" in text
    assert f"const RAISED: u32 = {RAISED}u;" in text


def test_only_floats_in_whole_groups_go_into_textures(shuffling):
    caps = shuffling.capabilities
    assert select_layout(Spec.dense((3, 64), F16), caps, rounded=False).name == "float_texture"
    for shape, dtype in (((64,), F16), ((2, 3, 64), F16), ((3, 48), F16), ((3, 64), Q8_0)):
        assert select_layout(Spec.dense(shape, dtype), caps, rounded=False) is None
    assert select_layout(Spec.dense((0, 64), F16), caps, rounded=False) is None
    # Sixty-four of these rows are more than a texture holds.
    assert select_layout(Spec.dense((3, 1 << 22), F32), caps, rounded=False) is None


def test_products_and_rows_need_no_second_copy(shuffling, rng):
    values = f16_rows(rng, 130, 64)
    x, ids = rng.standard_normal((2, 64), "f4"), np.array([129, 0, 64], "i4")
    before = weights_nbytes(shuffling)
    matrix = kept(shuffling, values)
    size = weights_nbytes(shuffling) - before
    with Context(shuffling) as ctx:
        product = matrix.mulmat(ctx.from_numpy(x)).numpy()
        rows = matrix.rows(ctx.from_numpy(ids)).numpy()
    wide = values.astype("f4")
    np.testing.assert_allclose(product, x @ wide.T, rtol=1e-4, atol=1e-4)
    assert (rows == wide[ids]).all()
    (part,) = matrix.storage.handle
    assert part.planes == {}
    assert (
        size == part.packed[""].nbytes == 2 * TEXEL_ROW_NBYTES
    )  # three tiles of 64 rows of 128 bytes
    shuffling.free(matrix.storage)
    assert weights_nbytes(shuffling) == before


@pytest.mark.parametrize("step", [1, 2])
def test_slices_of_rows_are_read_in_the_texture(shuffling, rng, step):
    values, x = f16_rows(rng, 200, 32), rng.standard_normal((1, 32), "f4")
    matrix = kept(shuffling, values)
    with Context(shuffling) as ctx:
        part = matrix[65:190] if step == 1 else matrix.reshape(100, 64)[3:50]
        wide = values[65:190] if step == 1 else values.reshape(100, 64)[3:50]
        x = np.tile(x, step)
        got = part.mulmat(ctx.from_numpy(x)).numpy()
    np.testing.assert_allclose(got, x @ wide.astype("f4").T, rtol=1e-4, atol=1e-4)
    # Rows of another length are not those of the texture.
    assert bool(matrix.storage.handle[0].planes) == (step == 2)
    shuffling.free(matrix.storage)


def test_other_ops_get_a_buffer_that_goes_with_the_weight(shuffling, rng):
    values = f16_rows(rng, 70, 32)
    before = weights_nbytes(shuffling)
    matrix = kept(shuffling, values)
    with Context(shuffling) as ctx:
        more = matrix + ctx.from_numpy(np.ones((70, 32), "f2"))
        assert (more.numpy() == values + np.float16(1)).all()
    assert list(matrix.storage.handle[0].planes) == [""]
    shuffling.free(matrix.storage)
    assert weights_nbytes(shuffling) == before
