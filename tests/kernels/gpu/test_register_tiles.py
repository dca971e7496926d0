"""Tiles of products of many columns: which a product gets, and that each gives what NumPy gives."""

import dataclasses

import numpy as np
import pytest

from tests.ops.operands import SUMMED, beside_ties, limit_of_bytes, tensor, weight, weight_bytes
from tests.shares import rare
from wgpu_backend.dtypes import BF16, F16, IQ4_NL, IQ4_XS, MXFP4, Q2_K, Q3_K, Q4_0, Q4_K, Q6_K, Q8_0
from wgpu_backend.graph.capabilities import Capabilities, Tile
from wgpu_backend.graph.spec import Spec
from wgpu_backend.kernels.gpu import product_rules, register_tiles
from wgpu_backend.kernels.gpu.register_tiles import (
    PAIR_TILES,
    SMALL,
    TILES,
    f16_tile,
    f32_tile,
    pick_tile,
    q8_tile,
)
from wgpu_backend.ml.calibration import tuning
from wgpu_backend.ml.calibration.tuning import Effort
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.wgpu.dry_run import DryRunExecutor
from wgpu_backend.ops.linear.activation_rounding import EVERY_PRODUCT
from wgpu_backend.ops.linear.attributes import Q8, Epilogue
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.linear.q8 import FORMATS, q8_activations
from wgpu_backend.ops.op import fusions
from wgpu_backend.testing import nmse, values_of

EXACT = SUMMED
OF_F16 = 5e-6  # eleven bits, and sums of 32 in as many: up to 1e-6
OF_FUSED = 1e-6  # on a device whose fma rounds twice; one that is wrong gives 1
ROOM = Capabilities(max_workgroup_nbytes=32768)
LARGE = [pytest.param(tile, marks=rare) for tile in TILES if tile.columns != 64]
SIZES = [
    Tile(64, 64, 64),
    SMALL,
    *LARGE,
    pytest.param(Tile(128, 64, 128), marks=rare),
]


@pytest.fixture
def wide(executors):
    return executors("wide")


@pytest.fixture(params=SIZES, ids=lambda t: f"{t.rows}x{t.columns}")
def tile(request, monkeypatch):
    monkeypatch.setattr(register_tiles, "pick_tile", lambda *_: request.param)
    return request.param


def edges(tile):
    """Rows and columns that make two tiles each way, neither of them full."""
    return tile.rows + 3, tile.columns + 1


@pytest.mark.parametrize("groups", [1, 4, 5])
def test_every_tile_of_rounded_activations(wide, check, rng, tile, groups):
    """One slab only, two of two groups, and an odd number of groups."""
    if tile.rows < tile.threads and groups % 2:
        pytest.skip("the tile has a row of two groups for each thread, so groups come in pairs")
    (m, n), k = edges(tile), 32 * groups
    data = weight_bytes(rng, m, k, Q4_0, k**-0.5)
    x = beside_ties(rng.standard_normal((n, k), "f4"))

    def product(ctx):
        return linear(
            weight(ctx._executor, m, k, Q4_0, data), q8_activations(tensor(ctx, x)), prologue=Q8
        )

    check(wide, product, limit=EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 3])
def test_every_tile_in_f32(wide, check, rng, tile, groups):
    (m, n), k = edges(tile), 32 * groups
    data, x = weight_bytes(rng, m, k, F16, k**-0.5), rng.standard_normal((n, k), "f4")
    check(
        wide,
        lambda ctx: linear(weight(ctx._executor, m, k, F16, data), tensor(ctx, x)),
        limit=EXACT,
    )


@pytest.mark.parametrize("rounds", [True, False], ids=["q8", "f32"])
@pytest.mark.parametrize("dtype", [Q4_0, Q4_K, Q6_K], ids=str)
def test_tiles_of_threads_with_few_registers(wide, check, rng, dtype, rounds):
    """Slabs are brought behind the products, and fewer rows are multiplied at once."""
    device = wide.as_if(dataclasses.replace(wide.capabilities, few_registers=True))
    m, n, k = 131, 66, 768
    data = weight_bytes(rng, m, k, dtype, k**-0.5)
    x = beside_ties(rng.standard_normal((n, k), "f4"))

    def product(ctx):
        w, columns = weight(ctx._executor, m, k, dtype, data), tensor(ctx, x)
        return linear(w, q8_activations(columns), prologue=Q8) if rounds else linear(w, columns)

    check(device, product, limit=limit_of_bytes(device, dtype) if rounds else EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 3])
def test_every_tile_in_f16(wide, check, rng, tile, groups):
    (m, n), k = edges(tile), 32 * groups
    data, x = weight_bytes(rng, m, k, F16, k**-0.5), rng.standard_normal((n, k), "f4")
    check(
        wide,
        lambda ctx: linear(weight(ctx._executor, m, k, F16, data), tensor(ctx, x), precision="f16"),
        limit=OF_F16,
    )


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("dtype", [BF16, F16, Q4_K], ids=str)
def test_products_in_f16_take_values_of_any_size(wide, check, rng, dtype, scale):
    data, x = weight_bytes(rng, 35, 256, dtype, 1 / 16), rng.standard_normal((33, 256), "f4")
    x[5] = 0
    x = (x * scale).astype("f4")
    check(
        wide,
        lambda ctx: linear(
            weight(ctx._executor, 35, 256, dtype, data), tensor(ctx, x), precision="f16"
        ),
        limit=OF_F16,
    )


@pytest.mark.parametrize(
    ("dtype", "k"),
    [
        (Q4_0, 96),
        pytest.param(Q8_0, 96, marks=pytest.mark.slow),
        pytest.param(Q4_K, 256, marks=pytest.mark.slow),
        pytest.param(Q6_K, 256, marks=pytest.mark.slow),
        pytest.param(Q2_K, 256, marks=pytest.mark.slow),
        pytest.param(Q3_K, 256, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_blocks_stay_packed_until_they_are_multiplied_in_f16(wide, check, rng, dtype, k):
    data, x = weight_bytes(rng, 35, k, dtype, 1 / 16), rng.standard_normal((33, k), "f4")
    check(
        wide,
        lambda ctx: linear(
            weight(ctx._executor, 35, k, dtype, data), tensor(ctx, x), precision="f16"
        ),
        limit=OF_F16 / 4,
    )


@pytest.mark.slow
@pytest.mark.parametrize("value", [65504, 6e-8, 0])
def test_weights_in_f16_of_any_size(wide, check, rng, value):
    """The largest and the smallest there are, and none."""
    w = value * rng.choice([-1.0, 1.0], (35, 96))
    x = np.abs(rng.standard_normal((33, 96), "f4"))
    data = w.astype("f2").tobytes()
    check(
        wide,
        lambda ctx: linear(
            weight(ctx._executor, 35, 96, F16, data), tensor(ctx, x), precision="f16"
        ),
        limit=OF_F16,
    )


@pytest.mark.parametrize(
    "dtype", [Q4_0, Q8_0, Q4_K, Q6_K, Q2_K, Q3_K, IQ4_NL, IQ4_XS, MXFP4], ids=str
)
def test_sums_that_a_fused_multiply_add_makes(wide, check, rng, dtype):
    wide = wide.as_if(dataclasses.replace(wide.capabilities, fused=True))
    data, x = weight_bytes(rng, 40, 512, dtype, 1 / 16), rng.standard_normal((33, 512), "f4")

    def product(ctx):
        return linear(
            weight(ctx._executor, 40, 512, dtype, data), q8_activations(tensor(ctx, x)), prologue=Q8
        )

    check(wide, product, limit=OF_FUSED)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [True, False], ids=["q8", "f16"])
def test_halves_are_joined_in_a_tile(wide, check, rng, monkeypatch, rounds):
    monkeypatch.setattr(register_tiles, "pick_tile", lambda *_: Tile(64, 64, 64))
    data = weight_bytes(rng, 134, 64, Q4_0, 1 / 8)
    x = beside_ties(rng.standard_normal((65, 64), "f4"))

    def product(ctx):
        columns, both = tensor(ctx, x), weight(ctx._executor, 134, 64, Q4_0, data)
        if rounds:
            return linear(both, q8_activations(columns), prologue=Q8, epilogue=Epilogue("silu"))
        return linear(both, columns, epilogue=Epilogue("silu"), precision="f16")

    # The error of a gate meets that of what it multiplies.
    check(wide, product, limit=EXACT if rounds else 2 * OF_F16)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("n", [9, 40, 512])
def test_tiles_fit_the_workgroup_memory_that_every_device_has(dtype, n):
    small = Capabilities()
    for groups in (3, 128):
        tile, choices = q8_tile(dtype, 4096, n, groups, small)
        nbytes = register_tiles._q8_nbytes(dtype, tile, choices["SLAB"])
        assert nbytes <= 16384
        assert groups % choices["SLAB"] == 0
    assert register_tiles.f32_nbytes(f32_tile(4096, n, small)[0]) <= 16384
    assert f16_tile(4096, n, small)[0].threads <= 256


@pytest.mark.parametrize(
    ("m", "n", "expected"),
    [
        (4096, 512, Tile(128, 128, 256)),
        (4096, 256, Tile(128, 64, 128)),  # 64 groups of the largest tile leave cores idle
        (28672, 64, Tile(128, 64, 128)),
        (4096, 64, SMALL),
        (4096, 16, Tile(128, 16, 32)),  # which would fill half of the smallest tile
        (28672, 32, Tile(64, 32, 64)),
        (33, 33, SMALL),
    ],
)
def test_a_tile_suits_its_product(m, n, expected):
    assert pick_tile(m, n, tuple(TILES)) == expected


@pytest.mark.parametrize(("n", "taken"), [(512, True), (64, True), (9, False)])
def test_a_tile_that_was_measured_is_taken_unless_it_has_more_surplus_columns(n, taken):
    tile = Tile(64, 64, 64)
    tuned = {f"matmul_tiled{name} q4_0 many": tile for name in ("", "_f16", "_q8")}
    known = dataclasses.replace(ROOM, tuned=tuned)
    found = [
        f32_tile(8192, n, known, Q4_0)[0],
        f16_tile(8192, n, known, Q4_0)[0],
        q8_tile(Q4_0, 8192, n, 128, known)[0],
    ]
    assert all((each == tile) == taken for each in found)
    assert q8_tile(Q4_0, 8192, 512, 128, ROOM)[0] != tile


@pytest.mark.parametrize("n", [9, 40, 512])
def test_threads_with_few_registers_make_few_sums(n):
    few = dataclasses.replace(ROOM, few_registers=True)
    for tile, choices in (
        f32_tile(4096, n, few),
        *(q8_tile(t, 4096, n, 128, few) for t in FORMATS),
    ):
        assert tile.rows * tile.columns <= 32 * tile.threads
        assert not choices["AHEAD"]
        assert choices.get("SLAB", 1) == 1
    assert f32_tile(4096, n, ROOM)[1]["AHEAD"]


@pytest.mark.parametrize("few", [True, False])
def test_pairs_of_eight_bits_stand_for_f16_where_registers_are_few(wide, rng, monkeypatch, few):
    known = {"f16": True, "rounded": EVERY_PRODUCT, "few_registers": few}
    device = wide.as_if(dataclasses.replace(wide.capabilities, **known))
    monkeypatch.setattr(device, "rules", fusions(exact=False, coarse=False))
    data, x = weight_bytes(rng, 64, 96, Q4_0, 0.1), rng.standard_normal((130, 96), "f4")
    with Context(DryRunExecutor(device, lambda shader: None)) as ctx:
        product = weight(ctx._executor, 64, 96, Q4_0, data).mulmat(tensor(ctx, x))
        ops = [node.call.op.name for node, _ in ctx.record(product).plan.steps]
    assert ops == ["q8_pair" if few else "f16_columns", "linear"]


def test_tuning_tries_all_tiles_beside_what_nobody_measured_would_take(wide):
    w = tuning._weight(wide, Spec.dense((40, 256), Q4_0))
    found = list(tuning._cases(wide, w, w, Effort(rows=40, values=256, columns=(64,))))
    wide.free(w.storage)
    names = {"matmul_tiled", "matmul_tiled_q8"}
    names |= {"matmul_tiled_f16", "matmul_pairs"} if wide.capabilities.f16 else set()
    assert {case.key for case in found} == {f"{name} q4_0 many" for name in names}
    for case in found:
        in_pairs = case.key.startswith("matmul_pairs")
        assert in_pairs or case.tiles[0] == SMALL
        assert set(PAIR_TILES if in_pairs else TILES) <= set(case.tiles)


def test_products_in_f16_are_in_f32_without_such_arithmetic(executors, check, rng):
    w, x = rng.standard_normal((4, 32), "f4"), rng.standard_normal((17, 32), "f4")
    baseline = executors("baseline")
    check(
        baseline,
        lambda ctx: linear(tensor(ctx, w), tensor(ctx, x), precision="f16"),
        limit=EXACT,
    )


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [False, True])
def test_a_rule_makes_products_in_f16_where_rounding_is_allowed(wide, rng, monkeypatch, rounds):
    w, x = (rng.standard_normal(shape, "f4") for shape in ((128, 64), (17, 64)))

    def gated(ctx):
        both = tensor(ctx, w, F16)
        gate, up = both.slice(0, 0, 64), both.slice(0, 64, 128)
        columns = tensor(ctx, x)
        return gate.mulmat(columns).swiglu(up.mulmat(columns))

    exact = values_of(wide, gated)
    monkeypatch.setattr(wide, "rules", fusions(["linear_f16", "linear_gated"], exact=not rounds))
    error = nmse(values_of(wide, gated), exact)
    assert (1e-11 < error < OF_F16) if rounds else error < EXACT


@pytest.mark.parametrize("least", [17, 18])
def test_columns_are_rounded_once_where_there_are_enough(wide, rng, monkeypatch, least):
    ops, _ = two_products(wide, rng, monkeypatch, least)
    assert ops.count("f16_columns") == (least == 17)


@pytest.mark.slow
@pytest.mark.parametrize("least", [17, 18])
def test_columns_that_are_rounded_once_are_as_good(wide, rng, monkeypatch, least):
    _, error = two_products(wide, rng, monkeypatch, least)
    assert 1e-11 < error() < OF_F16


def two_products(wide, rng, monkeypatch, least):
    """Ops of two products of the same columns, and a function that computes their error."""
    w, x = (rng.standard_normal(shape, "f4") for shape in ((64, 64), (17, 64)))
    monkeypatch.setattr(product_rules, "LEAST_COLUMNS", least)
    monkeypatch.setattr(wide, "rules", fusions(["linear_f16", "linear_f16_once"], exact=False))

    def build(ctx):
        columns, halves = tensor(ctx, x), (tensor(ctx, half, F16) for half in (w[:32], w[32:]))
        first, second = (half.mulmat(columns) for half in halves)
        return first.concat(second, axis=1)

    with Context(DryRunExecutor(wide, lambda shader: None)) as ctx:
        ops = [node.call.op.name for node, _ in ctx.record(build(ctx)).plan.steps]
    return ops, lambda: nmse(values_of(wide, build), x @ w.T)
