"""Products of few columns by the kernels for hardware: tiles, columns, what adds up lanes."""

import dataclasses

import numpy as np
import pytest

from tests.ops.fused import ran
from tests.ops.operands import tensor, weight, weight_bytes
from wgpu_backend.device.wgsl.limits import blank_comments, variable_nbytes
from wgpu_backend.device.wgsl.module import load
from wgpu_backend.dtypes import (
    BF16,
    F16,
    F32,
    IQ2_S,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    Q3_K,
    Q4_0,
    Q4_K,
    Q6_K,
    Q8_0,
)
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph.capabilities import Capabilities, Tile
from wgpu_backend.kernels.gpu import matvec
from wgpu_backend.kernels.gpu.matvec import COLUMNS, Extent, fit_tile
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.wgpu import storage
from wgpu_backend.ops.linear.activation_rounding import EVERY_PRODUCT, q8_pair, rms_norm_pair
from wgpu_backend.ops.linear.attributes import Q8, Q8_PAIR, Epilogue, Prologue
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.linear.q8 import q8_activations, q8_weighted
from wgpu_backend.ops.linear.q8_rounding import from_planes, to_planes
from wgpu_backend.ops.linear.q8_rounding import q8_activations_reference as numpy_activations
from wgpu_backend.ops.linear.tiles import candidates, key
from wgpu_backend.ops.op import fusions
from wgpu_backend.testing import nmse, values_of

LIMIT, LIMIT_OF_ONE = 1e-10, 1e-8  # as in test_q8


@pytest.fixture(params=[True, False], ids=["subgroups", "memory"])
def hardware(request, executors):
    """An executor that takes the kernels for hardware, of devices with subgroups and without."""
    wide = executors("wide")
    subgroups = wide.capabilities.subgroups and request.param
    return wide.as_if(dataclasses.replace(wide.capabilities, subgroups=subgroups))


def with_tile(executor, shader, dtype, n, tile):
    tuned = {key(shader, dtype, n): tile}
    return executor.as_if(dataclasses.replace(executor.capabilities, tuned=tuned))


def product(executor, check, rng, dtype, m, n, k, rounded):
    data = weight_bytes(rng, m, k, dtype, k**-0.5)
    x = rng.standard_normal((n, k), "f4")

    def multiplied(ctx):
        w, rows = weight(ctx._executor, m, k, dtype, data), tensor(ctx, x)
        return (
            linear(w, q8_activations(rows, planar=True), prologue=Q8) if rounded else w.mulmat(rows)
        )

    check(executor, multiplied, limit=LIMIT if m * n > 1 else LIMIT_OF_ONE)


@pytest.mark.parametrize(
    ("dtype", "rounded"),
    [(Q4_0, True), (Q6_K, True), (Q4_K, False), (F16, False), (IQ2_S, False)],
    ids=str,
)
@pytest.mark.parametrize("m", [1, 3, 33, 257])
def test_four_rows_of_a_work_group_need_not_divide_all(hardware, check, rng, dtype, rounded, m):
    shader = "matvec_q8" if rounded else "matvec"
    hardware = with_tile(hardware, shader, dtype, 1, Tile(4, 1, 64))
    product(hardware, check, rng, dtype, m, 1, 768, rounded)


@pytest.mark.parametrize("tile", [Tile(8, 1, 32), Tile(2, 1, 128), Tile(1, 1, 256)], ids=str)
@pytest.mark.parametrize(("dtype", "rounded"), [(Q8_0, True), (BF16, False), (F32, False)], ids=str)
def test_any_tile_computes_the_same(hardware, check, rng, dtype, rounded, tile):
    shader = "matvec_q8" if rounded else "matvec"
    hardware = with_tile(hardware, shader, dtype, 1, tile)
    product(hardware, check, rng, dtype, 35, 1, 2080, rounded)


@pytest.mark.parametrize("dtype", [Q3_K, Q4_K, Q6_K], ids=str)
@pytest.mark.parametrize("m", [36, 37])
def test_rows_whose_scales_are_whole_words(hardware, check, rng, dtype, m):
    """In eight bits, and the same with rows that lanes lack."""
    hardware = with_tile(hardware, "matvec_q8", dtype, 2, Tile(4, 2, 64))
    product(hardware, check, rng, dtype, m, 2, 1024, rounded=True)


def test_parts_of_a_weight_begin_where_lanes_expect():
    assert matvec.ROW_STEP == storage.ROW_STEP


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("dtype", [IQ4_NL, IQ4_XS, MXFP4], ids=str)
@pytest.mark.parametrize("n", [1, 3])
def test_numbers_from_a_table(hardware, check, rng, dtype, rounded, n):
    product(hardware, check, rng, dtype, 35, n, 768, rounded)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [32, 256])
def test_any_work_group_fills_the_table(hardware, check, rng, threads):
    hardware = with_tile(hardware, "matvec_q8", IQ4_NL, 1, Tile(8, 1, threads))
    product(hardware, check, rng, IQ4_NL, 35, 1, 2080, rounded=True)


@pytest.mark.parametrize("n", range(2, COLUMNS + 1))
def test_any_number_of_columns_in_eight_bits(hardware, check, rng, n):
    product(hardware, check, rng, Q4_0, 19, n, 96, rounded=True)


@pytest.mark.parametrize("n", [2, 5, 9, 16])
@pytest.mark.parametrize("dtype", [Q3_K, F16], ids=str)
def test_several_columns_of_a_tile(hardware, check, rng, dtype, n):
    hardware = with_tile(hardware, "matvec", dtype, n, Tile(4, 8, 64))
    product(hardware, check, rng, dtype, 33, n, 512, rounded=False)


@pytest.mark.parametrize("n", [1, 3, 5])
def test_pairs_stay_together(hardware, check, rng, n):
    data = weight_bytes(rng, 35, 256, Q6_K, 1 / 16)
    x = rng.standard_normal((n, 256), "f4")

    def multiplied(ctx):
        w = weight(ctx._executor, 35, 256, Q6_K, data)
        return linear(w, q8_pair(tensor(ctx, x), planar=True), prologue=Q8_PAIR)

    # The second half rounds what is left, whose last digits devices may make differently.
    check(hardware, multiplied, limit=1e-8)


@pytest.mark.parametrize("n", [1, 7])
def test_halves_of_a_weight_are_joined_behind_a_norm(hardware, check, rng, n):
    data = weight_bytes(rng, 2 * 33, 512, Q4_K, 1 / 16)
    x, scale = rng.standard_normal((n, 512), "f4"), rng.standard_normal(512, "f4")

    def build(ctx):
        rows = q8_weighted(tensor(ctx, x), tensor(ctx, scale), planar=True)
        both = weight(ctx._executor, 2 * 33, 512, Q4_K, data)
        return linear(both, rows, prologue=Prologue("q8", 1e-5), epilogue=Epilogue("silu"))

    check(hardware, build, limit=LIMIT)


@pytest.mark.parametrize("n", [1, 3, 33])
def test_planes_serve_every_kernel(any_gpu, check, rng, n):
    product(any_gpu, check, rng, Q4_0, 65, n, 288, rounded=True)


@pytest.mark.parametrize("shape", [(32,), (1, 96), (3, 5, 64)], ids=str)
def test_planes_hold_what_groups_do(any_gpu, rng, shape):
    x = rng.standard_normal(shape, "f4")
    got = values_of(any_gpu, lambda ctx: q8_activations(tensor(ctx, x), planar=True))
    want = values_of(any_gpu, lambda ctx: q8_activations(tensor(ctx, x)))
    assert got.shape == (3, *shape[:-1], shape[-1] // 32, 4)
    np.testing.assert_array_equal(from_planes(got), want)


def test_a_norm_is_split_into_planes(any_gpu, rng):
    x = rng.standard_normal((3, 96), "f4")

    def normed(planar):
        return values_of(
            any_gpu, lambda ctx: rms_norm_pair(tensor(ctx, x), eps=1e-5, planar=planar)
        )

    np.testing.assert_array_equal(from_planes(normed(True)).reshape(3, 2, 3, 12), normed(False))


def test_planes_and_back(rng):
    groups = numpy_activations(rng.standard_normal((2, 3, 64), "f4"))
    assert to_planes(groups).shape == (3, 2, 3, 2, 4)
    np.testing.assert_array_equal(from_planes(to_planes(groups)), groups)


def test_columns_may_be_a_part_of_planes(any_gpu, check, rng):
    data, x = weight_bytes(rng, 9, 64, Q4_0), rng.standard_normal((5, 64), "f4")

    def multiplied(ctx):
        planes = q8_activations(tensor(ctx, x), planar=True)
        return linear(weight(ctx._executor, 9, 64, Q4_0, data), planes.slice(1, 1, 4), prologue=Q8)

    check(any_gpu, multiplied, limit=LIMIT)


def test_planes_of_other_rows_are_refused(full):
    with Context(full) as ctx:
        w = ctx.from_bytes(Q4_0, bytes(Q4_0.nbytes(64)), 1, 64)
        planes = q8_activations(ctx.zeros(2, 96), planar=True)
        with pytest.raises(ShapeError, match=r"linear: x is \(3, 2, 3, 4\)"):
            linear(w, planes, prologue=Q8)


@pytest.mark.parametrize(("n", "planar"), [(1, True), (COLUMNS, True), (COLUMNS + 1, False)])
def test_rules_make_planes_for_few_columns(executors, monkeypatch, n, planar):
    wide = executors("wide")
    wide = wide.as_if(dataclasses.replace(wide.capabilities, rounded=EVERY_PRODUCT))
    monkeypatch.setattr(wide, "rules", fusions(exact=False))
    with Context(wide) as ctx:
        w = ctx.from_bytes(Q4_0, bytes(Q4_0.nbytes(64 * 64)), 64, 64)
        recorded = ctx.record(w.mulmat(ctx.zeros(n, 64)))
        labels = {op: label for op, label, _ in recorded.timed()}
        recorded.close()
    assert ("PLANAR=true" in labels["q8_activations"]) == planar
    assert ("x=planar_column" in labels["linear"]) == planar


NORMS = Prologue(eps=0.1, norm=True)


@pytest.mark.parametrize(
    ("dtype", "n", "activation"),
    [(F16, 1, None), (BF16, 1, "silu"), (F32, 3, None), (Q4_K, 1, "gelu"), (IQ2_S, 2, None)],
    ids=str,
)
def test_norms_of_the_rows(hardware, check, rng, dtype, n, activation):
    sources = 66 if activation else 33
    data = weight_bytes(rng, sources, 512, dtype, 1 / 16)
    x, gain = rng.standard_normal((n + 1, 512), "f4"), rng.standard_normal(512, "f4")

    def build(ctx):
        rows = tensor(ctx, x).slice(0, 1, n + 1)
        matrix = weight(ctx._executor, sources, 512, dtype, data)
        epilogue = Epilogue(activation)
        return linear(matrix, rows, gain=tensor(ctx, gain), prologue=NORMS, epilogue=epilogue)

    check(hardware, build, limit=LIMIT)


def normed_products(rng, n, dtype=F16, gains=(0, 0)):
    """A residual behind a norm, and two products that are joined behind norms of these gains."""
    data = [weight_bytes(rng, m, 64, dtype, 1 / 8) for m in (64, 64)]
    x, norms = rng.standard_normal((n, 64), "f4"), rng.standard_normal((2, 64), "f4")

    def build(ctx):
        first, both = (weight(ctx._executor, 64, 64, dtype, d) for d in data)
        weights = [tensor(ctx, norm) for norm in norms]
        rows = tensor(ctx, x)
        y = first.linear(rows.rms_norm(weights[1], eps=1e-5), rows)
        gate, up = (y.rms_norm(weights[i], eps=1e-5) for i in gains)
        gate = gate if gains[0] != gains[1] else up
        halves = both.slice(0, 0, 32).mulmat(gate), both.slice(0, 32, 64).mulmat(up)
        return [halves[0].swiglu(halves[1]), y]

    return build


INTO_PRODUCTS = ("linear_add", "linear_gated", "linear_norm")


@pytest.mark.parametrize(
    ("n", "dtype", "gains", "wanted"),
    [
        (1, F16, (0, 0), ["linear normed add", "linear normed gated"]),
        (1, F16, (0, 1), ["linear normed add", "linear normed", "linear normed", "swiglu"]),
        (3, F16, (0, 0), ["linear normed add", "linear normed gated"]),
        (9, F16, (0, 0), ["rms_norm", "linear add", "rms_norm", "linear gated"]),
        (1, Q8_0, (0, 0), ["rms_norm", "linear add", "rms_norm", "linear gated"]),
    ],
    ids=str,
)
def test_rules_fold_norms_into_products_of_floats(
    executors, monkeypatch, rng, n, dtype, gains, wanted
):
    build = normed_products(rng, n, dtype, gains)
    names, got = ran(executors("wide"), monkeypatch, INTO_PRODUCTS, build)
    assert names == wanted
    with Context(NumpyExecutor()) as ctx:
        for value, node in zip(got, build(ctx), strict=True):
            assert nmse(value, node.numpy()) < 1e-10


def test_a_norm_that_others_read_stays(executors, monkeypatch, rng):
    x, gain = rng.standard_normal((1, 64), "f4"), rng.standard_normal(64, "f4")
    data = weight_bytes(rng, 64, 64, F16, 1 / 8)

    def build(ctx):
        rows = tensor(ctx, x).rms_norm(tensor(ctx, gain), eps=1e-5)
        matrix = weight(ctx._executor, 64, 64, F16, data)
        return [matrix.linear(rows, rows)]

    names, _ = ran(executors("wide"), monkeypatch, INTO_PRODUCTS, build)
    assert names == ["rms_norm", "linear add"]


def test_norms_of_the_rows_that_do_not_fit_are_refused(executors):
    wide = executors("wide")
    with Context(wide) as ctx:
        matrix, x = ctx.from_bytes(Q8_0, bytes(Q8_0.nbytes(64)), 1, 64), ctx.zeros(1, 64)
        with pytest.raises(ShapeError, match=r"gain is \(32,\)"):
            linear(matrix, x, gain=ctx.zeros(32), prologue=NORMS)
        with pytest.raises(ShapeError, match="norm of rows in values with eps None"):
            linear(matrix, x, gain=ctx.zeros(64), prologue=Prologue(norm=True))
        with pytest.raises(DTypeError, match="linear: gain"):
            linear(matrix, x, prologue=NORMS)


@pytest.mark.slow
def test_norms_of_many_rows_are_left_to_the_portable_kernel(executors, check, rng):
    data, x = weight_bytes(rng, 35, 96, Q8_0, 1 / 8), rng.standard_normal((17, 96), "f4")
    gain = rng.standard_normal(96, "f4")

    def normed(ctx):
        matrix = weight(ctx._executor, 35, 96, Q8_0, data)
        return linear(matrix, tensor(ctx, x), gain=tensor(ctx, gain), prologue=NORMS)

    check(executors("wide"), normed, limit=LIMIT)


ROOMY = Capabilities(max_workgroup_nbytes=32768)


@pytest.mark.parametrize(
    ("extent", "tile"),
    [
        (Extent(rows=4096, groups=128, columns=1), Tile(4, 1, 64)),
        (Extent(rows=1024, groups=128, columns=1), Tile(4, 1, 128)),  # more lanes share a row
        (Extent(rows=256, groups=448, columns=1), Tile(2, 1, 256)),
        (Extent(rows=64, groups=448, columns=1), Tile(1, 1, 256)),
        (Extent(rows=4096, groups=28, columns=1), Tile(4, 1, 32)),  # no lane without a group
        (Extent(rows=896, groups=28, columns=1), Tile(1, 1, 32)),
        (Extent(rows=128256, groups=128, columns=8), Tile(4, 8, 64)),
        (Extent(rows=128256, groups=128, columns=12), Tile(4, 6, 64)),
    ],
    ids=str,
)
def test_tiles_fill_a_device(extent, tile):
    assert fit_tile(extent, Tile(4, 8, 64), 1, ROOMY) == tile


def test_lanes_are_no_more_than_memory_has_room_for():
    few_rows = Extent(rows=256, groups=448, columns=8)
    found = fit_tile(few_rows, Tile(4, 8, 64), 1, Capabilities(max_workgroup_nbytes=16384))
    assert 4 * (found.threads + 1) * (found.columns * (found.rows + 1) + 1) <= 16384


@pytest.mark.parametrize("lanes", ["subgroup", "workgroup"])
@pytest.mark.parametrize("shader", ["matvec", "matvec_q8"])
def test_a_candidate_has_room_for_all_that_a_product_may_sum(shader, lanes):
    """For eight columns: two rows that are joined, and the squares of a norm."""
    small = Capabilities(max_workgroup_nbytes=16384)
    for tile in candidates(f"{shader} q4_0 few", small):
        sources = max(tile.rows, 2)
        sums = 8 * (sources + (shader == "matvec_q8"))
        choices = {"COLS": 8, "ROWS": sources // 2, "SOURCES": sources, "SUMS": sums}
        choices |= {"WG": tile.threads, "lanes": f"kernels/gpu/lib/lane_sums_{lanes}"}
        choices |= {"lanes_QUARTER": -(-sums // 4)} if lanes == "subgroup" else {}
        choices |= {"weights": "formats/int8/iq4_nl", "table": "kernels/gpu/table/iq4"}
        choices |= {"share": "kernels/gpu/share/integers"} if shader == "matvec" else {}
        assert (
            0
            < variable_nbytes(blank_comments(load(f"kernels/gpu/{shader}", choices).text)).workgroup
            <= 16384
        )
