"""Products in pairs of rows in f16, and the rounding of columns for them."""

import dataclasses

import numpy as np
import pytest

from tests.ops.operands import tensor, weight, weight_bytes
from wgpu_backend.dtypes import (
    BF16,
    F16,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    Q2_K,
    Q3_K,
    Q4_0,
    Q4_1,
    Q4_K,
    Q5_0,
    Q5_1,
    Q5_K,
    Q6_K,
    Q8_0,
)
from wgpu_backend.errors import DeviceError, DTypeError, ShapeError
from wgpu_backend.graph.capabilities import Capabilities, Tile
from wgpu_backend.kernels.gpu import register_tiles
from wgpu_backend.kernels.gpu.pairs import FORMATS, IN_COLUMNS, f16_columns
from wgpu_backend.kernels.gpu.register_tiles import PAIR_TILES, pair_tile
from wgpu_backend.kernels.gpu.split_k import linear_merge, linear_splits
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.wgpu.dry_run import DryRunExecutor
from wgpu_backend.ops.linear.attributes import SUMS, Epilogue
from wgpu_backend.ops.linear.f16_groups import f16_columns_values
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.testing import nmse, values_of

OF_PAIRS = 1.25e-6  # eleven bits, and sums of 32 in as many: 8e-7, more where fma rounds twice
OF_A_COLUMN = 2e-6  # the sums of one scatter more
ROOM = Capabilities(f16=True, max_workgroup_nbytes=48 << 10)
# Whose slabs have two groups, as those of 128 x 128, in less workgroup memory.
TWO_GROUPS = Tile(64, 128, 128)
# A thread has half as many sums as in the smallest tile of `PAIR_TILES`.
QUICKLY_COMPILED = Tile(32, 16, 32)
# Formats of long blocks, in the tile that is chosen for them, and all others; `test_every_tile` has
# two of those in each tile.
SEVERAL = [Q4_K, Q6_K]
MANY = [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q5_K, IQ4_NL, IQ4_XS, MXFP4, F16, BF16]


@pytest.fixture
def wide(executors):
    found = executors("wide")
    if not found.capabilities.f16:
        pytest.skip("needs arithmetic in f16")
    return found


def taken(monkeypatch, tile):
    """Have products take a tile."""
    monkeypatch.setattr(register_tiles, "PAIR_TILES", {tile: 1.0})


def product(dtype, m, data, x, addend=None, **given):
    def build(ctx):
        w = weight(ctx._executor, m, x.shape[-1], dtype, data)
        added = None if addend is None else tensor(ctx, addend)
        columns = f16_columns(tensor(ctx, x))
        return linear(w, columns, added, prologue=IN_COLUMNS, precision="f16", **given)

    return build


def exact(dtype, m, data, x):
    """The product of unrounded columns, by NumPy."""
    return values_of(
        NumpyExecutor(),
        lambda ctx: linear(weight(ctx._executor, m, x.shape[-1], dtype, data), tensor(ctx, x)),
    )


@pytest.mark.parametrize("shape", [(17, 64), (1, 32), (2, 5, 96), (8, 288)])
def test_columns_are_rounded_as_the_reference_says(wide, check, rng, shape):
    """Rows of any magnitude, and one of zeros."""
    x = rng.standard_normal(shape) * np.exp(9 * rng.standard_normal((*shape[:-1], 1)))
    x = x.astype("f4")
    x.reshape(-1, shape[-1])[0] = 0
    check(wide, lambda ctx: f16_columns(tensor(ctx, x)), limit=0)


def test_columns_keep_eleven_bits_of_any_magnitude(rng):
    with Context(NumpyExecutor()) as ctx:
        for scale in (1e-20, 1e-3, 1.0, 1e6, 1e30):
            x = (rng.standard_normal((5, 64)) * scale).astype("f4")
            found = f16_columns_values(np.asarray(f16_columns(tensor(ctx, x)).numpy()), 64)
            largest = np.abs(x).max(axis=-1, keepdims=True)
            assert (np.abs(found - x) <= largest * 2.0**-11).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", SEVERAL, ids=str)
def test_a_product_is_right(wide, rng, dtype):
    """A column of zeros, and columns of any magnitude; tiles of which none is full."""
    is_right(wide, rng, dtype, 131, 67)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", MANY, ids=str)
def test_a_product_of_another_format_is_right(wide, rng, monkeypatch, dtype):
    taken(monkeypatch, QUICKLY_COMPILED)
    is_right(wide, rng, dtype, 36, 18)


def is_right(wide, rng, dtype, m, n):
    k = 256 if dtype.block == 256 else 96
    x = rng.standard_normal((n, k), "f4")
    x[5] = 0
    x[7] *= 1e-20
    x[8] *= 1e4
    data, addend = weight_bytes(rng, m, k, dtype, k**-0.5), rng.standard_normal((n, m), "f4")
    addend[7] = 0
    got = values_of(wide, product(dtype, m, data, x, addend)) - addend
    wanted = exact(dtype, m, data, x)
    plain = [i for i in range(n) if i not in (5, 7, 8)]
    assert nmse(got[plain], wanted[plain]) < OF_PAIRS
    assert max(nmse(got[i], wanted[i]) for i in (7, 8)) < OF_A_COLUMN
    assert not got[5].any()


@pytest.mark.slow
@pytest.mark.parametrize("tile", [*PAIR_TILES, TWO_GROUPS], ids=lambda t: f"{t.rows}x{t.columns}")
@pytest.mark.parametrize("dtype", [Q4_0, F16], ids=str)
def test_every_tile(wide, rng, monkeypatch, tile, dtype):
    """Two tiles each way, neither of them full."""
    taken(monkeypatch, tile)
    needs, most = register_tiles._pair_nbytes(dtype, tile), wide.capabilities.max_workgroup_nbytes
    if needs > most:
        pytest.skip(f"the tile needs {needs} bytes of workgroup memory, the device has {most}")
    m, n, k = tile.rows + 3, tile.columns + 1, 128
    x, data = rng.standard_normal((n, k), "f4"), weight_bytes(rng, m, k, dtype, 1 / 16)
    got = values_of(wide, product(dtype, m, data, x))
    assert nmse(got, exact(dtype, m, data, x)) < OF_PAIRS


@pytest.mark.slow
@pytest.mark.parametrize("value", [65504, 6e-8, 0])
def test_weights_in_f16_of_any_size(wide, rng, monkeypatch, value):
    """The largest and the smallest there are, and none."""
    taken(monkeypatch, Tile(64, 32, 32))
    data = (value * rng.choice([-1.0, 1.0], (35, 96))).astype("f2").tobytes()
    x = np.abs(rng.standard_normal((33, 96), "f4"))
    got, wanted = values_of(wide, product(F16, 35, data, x)), exact(F16, 35, data, x)
    assert nmse(got, wanted) < OF_PAIRS if value else not got.any()


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_column_that_is_not_finite_gives_nan(wide, rng, monkeypatch, bad):
    """And no other column: theirs are as of finite ones."""
    taken(monkeypatch, QUICKLY_COMPILED)
    x, data = rng.standard_normal((17, 96), "f4"), weight_bytes(rng, 35, 96, Q4_0, 1 / 8)
    x[3, 40] = bad
    got = values_of(wide, product(Q4_0, 35, data, x))
    assert np.isnan(got).all(axis=1).tolist() == [i == 3 for i in range(17)]
    got, x = (np.delete(rows, 3, axis=0) for rows in (got, x))
    assert nmse(got, exact(Q4_0, 35, data, x)) < OF_PAIRS


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_halves_are_joined(wide, rng, monkeypatch, activation):
    taken(monkeypatch, Tile(64, 32, 32))
    x, data = rng.standard_normal((33, 96), "f4"), weight_bytes(rng, 140, 96, Q4_0, 1 / 8)
    build = product(Q4_0, 140, data, x, epilogue=Epilogue(activation))
    # The error of a gate meets that of what it multiplies.
    assert nmse(values_of(wide, build), values_of(NumpyExecutor(), build)) < 3 * OF_PAIRS


@pytest.mark.slow
@pytest.mark.parametrize("part_groups", [4, 3])
def test_parts_of_k(wide, rng, monkeypatch, part_groups):
    taken(monkeypatch, QUICKLY_COMPILED)
    x, data = rng.standard_normal((18, 352), "f4"), weight_bytes(rng, 36, 352, Q8_0, 1 / 16)

    def build(ctx):
        w, columns = weight(ctx._executor, 36, 352, Q8_0, data), f16_columns(tensor(ctx, x))
        given = {"prologue": IN_COLUMNS, "precision": "f16", "part_groups": part_groups}
        return linear_merge(linear_splits(w, columns, **given))

    assert nmse(values_of(wide, build), exact(Q8_0, 36, data, x)) < OF_PAIRS


@pytest.mark.slow
def test_rows_of_a_weight_that_lies_in_several_bindings(executors, wide, rng, monkeypatch):
    taken(monkeypatch, Tile(64, 32, 32))
    split = executors("split wide")
    x, data = rng.standard_normal((18, 512), "f4"), weight_bytes(rng, 132, 512, F16, 1 / 16)
    got = values_of(split, product(F16, 132, data, x))
    assert nmse(got, exact(F16, 132, data, x)) < OF_PAIRS


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("n", [17, 40, 512])
def test_tiles_fit_the_workgroup_memory_that_every_device_has(dtype, n):
    for groups in (3, 128):
        tile, choices = pair_tile(dtype, 4096, n, groups, Capabilities(f16=True))
        assert register_tiles._pair_nbytes(dtype, tile) <= 16384
        assert groups % choices["SLAB"] == 0


@pytest.mark.parametrize(
    ("m", "n", "groups", "expected"),
    [
        (4096, 512, 128, Tile(128, 128, 256)),
        (4096, 512, 127, Tile(128, 64, 128)),  # whose slabs are single groups
        (4096, 256, 128, Tile(128, 64, 128)),  # 64 groups of the largest tile leave cores idle
        (28672, 17, 128, Tile(64, 32, 32)),
    ],
)
def test_a_tile_suits_its_product(m, n, groups, expected):
    assert pair_tile(Q4_0, m, n, groups, ROOM)[0] == expected


def test_a_measured_tile_is_taken_unless_it_has_more_surplus_columns():
    tile = Tile(64, 64, 64)
    known = dataclasses.replace(ROOM, tuned={"matmul_pairs q4_0 many": tile})
    assert pair_tile(Q4_0, 4096, 512, 128, known)[0] == tile
    assert pair_tile(Q4_0, 4096, 17, 128, known)[0] != tile


def test_columns_of_another_form_are_refused(executors, rng):
    data = weight_bytes(rng, 8, 64, Q8_0, 1 / 16)
    with Context(NumpyExecutor()) as ctx:
        w = weight(ctx._executor, 8, 64, Q8_0, data)
        with pytest.raises(ShapeError, match=r"needs x of \(2, 132\) from f16_columns"):
            linear(w, f16_columns(tensor(ctx, np.ones((2, 32), "f4"))), prologue=IN_COLUMNS)
        with pytest.raises(DTypeError, match="x is f32"):
            linear(w, tensor(ctx, np.ones((2, 132), "f4")), prologue=IN_COLUMNS)
        with pytest.raises(ShapeError, match="33 values, needs a multiple of 32"):
            f16_columns(tensor(ctx, np.ones((2, 33), "f4")))
    with Context(DryRunExecutor(executors("baseline"), lambda shader: None)) as ctx:
        w, rows = weight(ctx._executor, 8, 64, Q8_0, data), ctx.zeros(2, 64)
        with pytest.raises(DeviceError, match="f16_columns: the device has no kernel"):
            ctx.record(linear(w, f16_columns(rows), prologue=IN_COLUMNS, epilogue=SUMS))
