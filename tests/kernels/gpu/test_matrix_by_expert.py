"""Products by expert on matrix units: which launches take them, and their values."""

import dataclasses

import numpy as np
import pytest

from tests.kernels.gpu.test_matrix import DEVICE, OF_F16
from tests.ops.operands import tensor, weight_bytes
from tests.ops.test_experts import experts_of
from wgpu_backend.dtypes import BF16, F16, F32, MXFP4, Q4_0, Q4_K, Q5_1, Q6_K, Q8_0
from wgpu_backend.errors import DeviceError, DTypeError, ShapeError
from wgpu_backend.graph.capabilities import MatrixUnit
from wgpu_backend.kernels import complete, select
from wgpu_backend.kernels.gpu import matrix
from wgpu_backend.kernels.gpu.matrix import IN_ROWS, expert_blocks, f16_rows
from wgpu_backend.kernels.gpu.register_tiles import EXPERT_TILES
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.moe.expert_tiles import expert_tiles
from wgpu_backend.ops.moe.experts import linear_by_expert
from wgpu_backend.ops.op import fusions
from wgpu_backend.testing import nmse, values_of

SHADER, IN_PAIRS = "kernels/gpu/matmul_matrix_by_expert", "kernels/gpu/matmul_tiled_by_expert"
COUNT, TOKENS, USED = 3, 50, 2


def drawn(rng, m, k, dtype, x_used=1):
    """Weights, columns of any magnitude, and experts, of which one has several tiles."""
    x = rng.standard_normal((TOKENS, x_used, k), "f4")
    x[3] *= 1e6
    x[4] *= 1e-6
    ids = np.minimum(rng.integers(0, 5, (TOKENS, USED)), COUNT - 1).astype("i4")
    return weight_bytes(rng, COUNT * m, k, dtype, 1 / 16), x, ids


@pytest.fixture
def small(units, monkeypatch):
    """The device, with few matrices for each subgroup: rasterisers compile those in seconds."""
    monkeypatch.setattr(matrix, "EXPERT_BLOCKS", {32: ((2, 2, 1),), 64: ((2, 4, 1),)})
    return units


def by_tiles(m, dtype, data, x, ids, bias=None, pairs=32):
    def build(ctx):
        experts = experts_of(ctx, COUNT, m, x.shape[-1], dtype, data)
        tiles = expert_tiles(ctx.from_numpy(ids), experts=COUNT, size=pairs)
        more = () if bias is None else (tensor(ctx, bias),)
        rows = f16_rows(tensor(ctx, x))
        return linear_by_expert(experts, rows, tiles, *more, used=USED, prologue=IN_ROWS)

    return build


@pytest.mark.parametrize(
    ("m", "k", "x_used", "pairs"), [(70, 256, 1, 32), (129, 96, 2, 64), (5, 32, 1, 32)]
)
@pytest.mark.parametrize("dtype", [Q4_0, Q5_1, Q8_0, Q4_K, Q6_K, F16, BF16], ids=str)
def test_tiles_of_experts_are_right(small, rng, dtype, m, k, x_used, pairs):
    k = -(-k // dtype.block) * dtype.block
    build = by_tiles(m, dtype, *drawn(rng, m, k, dtype, x_used), pairs=pairs)
    assert_each_row_is_right(small, build)


@pytest.mark.slow
@pytest.mark.parametrize("pairs", matrix.EXPERT_BLOCKS)
def test_tiles_of_every_width_are_right(units, rng, pairs):
    build = by_tiles(70, Q4_0, *drawn(rng, 70, 64, Q4_0), pairs=pairs)
    assert_each_row_is_right(units, build)


def assert_each_row_is_right(executor, build):
    got, wanted = values_of(executor, build), values_of(NumpyExecutor(), build)
    assert max(nmse(got[row], wanted[row]) for row in range(TOKENS)) < OF_F16


def test_a_bias_of_the_expert_is_added(small, rng):
    data, x, ids = drawn(rng, 33, 64, Q8_0)
    build = by_tiles(33, Q8_0, data, x, ids, rng.standard_normal((COUNT, 33), "f4"))
    assert_each_row_is_right(small, build)


@pytest.mark.parametrize("rows", [64, 100])
def test_weights_may_lie_in_parts(small, rng, rows):
    data, x, ids = drawn(rng, 70, 64, Q8_0)
    build = by_tiles(70, Q8_0, data, x, ids)
    # Parts end within an expert, and within a tile of its rows.
    parts = dataclasses.replace(small.capabilities, max_binding_nbytes=rows * 64)
    assert_each_row_is_right(small.as_if(parts), build)


def taken(rng, device, dtype, *, exact=False):
    """Names of the ops that the rules leave of a product by expert, and the shader of the last."""
    data, x, ids = drawn(rng, 33, 64, dtype)
    executor = NumpyExecutor(complete(device))
    executor.rules = fusions(exact=exact)
    with Context(executor) as ctx:
        experts = experts_of(ctx, COUNT, 33, 64, dtype, data)
        recorded = ctx.record(experts.mulmat_id(ctx.from_numpy(x), ctx.from_numpy(ids)))
        steps = list(recorded.plan.steps)
        recorded.close()
    names = [node.call.op.name for node, _ in steps]
    node, launch = steps[-1]
    return names, select(node.call.op, launch, device).shader


def test_prompts_take_units_where_rounding_is_allowed(rng):
    wide = dataclasses.replace(DEVICE, subgroups=True)
    names, shader = taken(rng, wide, Q4_0)  # 33 pairs of each expert, on average
    assert sorted(names) == ["expert_tiles", "f16_rows", "linear_by_expert"]
    assert shader == SHADER
    # Scales of these may be any power of two.
    others = [taken(rng, wide, dtype)[1] for dtype in (MXFP4, F32)]
    none = dataclasses.replace(wide, matrix=None)
    others += [taken(rng, wide, Q4_0, exact=True)[1], taken(rng, none, Q4_0)[1]]
    assert others == [IN_PAIRS] * 4


@pytest.mark.parametrize(
    ("unit", "nbytes", "tile"),
    [
        (MatrixUnit(16, 16, 16, 32), 32 << 10, (128, 32, 64)),
        (MatrixUnit(16, 16, 16, 64), 32 << 10, (128, 32, 128)),
        (MatrixUnit(8, 16, 16, 16), 32 << 10, (64, 32, 32)),
        (MatrixUnit(8, 8, 8, 32), 16 << 10, (64, 32, 64)),
        (MatrixUnit(16, 16, 16, 32), 16 << 10, (64, 32, 64)),
        (MatrixUnit(16, 16, 16, 32), 32 << 10, (128, 64, 128)),
        (MatrixUnit(16, 16, 16, 32), 16 << 10, (64, 64, 64)),
        (MatrixUnit(16, 16, 16, 32), 32 << 10, (128, 128, 128)),
        (MatrixUnit(8, 8, 8, 32), 32 << 10, (64, 128, 128)),
    ],
)
def test_blocks_are_as_wide_as_a_tile_of_pairs(unit, nbytes, tile):
    device = dataclasses.replace(DEVICE, matrix=unit, max_workgroup_nbytes=nbytes)
    blocks = expert_blocks(tile[1], device)
    found = blocks.tile(unit)
    assert (found.rows, found.columns, found.threads) == tile
    assert blocks.nbytes(unit) + 8 * tile[1] <= nbytes


def test_tiles_are_as_wide_as_experts_have_pairs():
    def widths(**how):
        return [pairs for pairs, _ in complete(dataclasses.replace(DEVICE, **how)).expert_tiles]

    assert widths() == [128, 64, 32]
    assert widths(max_workgroup_nbytes=16 << 10) == [32]
    assert widths(few_registers=True) == widths(matrix=None) == [32]
    # Tiles of products that are not by units are as wide.
    assert {*widths()} == {*EXPERT_TILES}
    assert all(tile.columns == pairs for pairs, tile in EXPERT_TILES.items())


def test_other_widths_have_no_blocks():
    assert expert_blocks(24, DEVICE) is None
    assert expert_blocks(32, dataclasses.replace(DEVICE, matrix=None)) is None
    assert expert_blocks(32, dataclasses.replace(DEVICE, max_workgroup_nbytes=4096)) is None


def test_wrong_rows_are_refused(rng):
    data, _, ids = drawn(rng, 33, 64, Q8_0)
    with Context(NumpyExecutor()) as ctx:
        experts, chosen = experts_of(ctx, COUNT, 33, 64, Q8_0, data), ctx.from_numpy(ids)
        short = f16_rows(tensor(ctx, np.ones((TOKENS, 1, 32), "f4")))
        wanted = "rows of x have 40 values, rows of weights have 64; needs x of 72, from f16_rows"
        with pytest.raises(ShapeError, match=wanted):
            linear_by_expert(experts, short, chosen, prologue=IN_ROWS)
        plain = tensor(ctx, np.ones((TOKENS, 1, 72), "f4"))
        with pytest.raises(DTypeError, match="x is f32"):
            linear_by_expert(experts, plain, chosen, prologue=IN_ROWS)


def test_a_device_without_units_refuses_rows(rng):
    data, x, ids = drawn(rng, 33, 64, Q8_0)
    with Context(NumpyExecutor()) as ctx:
        node = by_tiles(33, Q8_0, data, x, ids)(ctx)
        with pytest.raises(DeviceError, match="no kernel for x in f16_rows; needs matrix units"):
            select(node.call.op, node.launch, dataclasses.replace(DEVICE, matrix=None))
