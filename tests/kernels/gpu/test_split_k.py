"""Products of many columns in parts of k, against NumPy; and when a product is made so."""

import numpy as np
import pytest

from tests.ops.operands import SUMMED, beside_ties, limit_of_bytes, tensor, weight, weight_bytes
from tests.rasterisers import as_rasteriser
from wgpu_backend.dtypes import BF16, F16, IQ4_NL, Q4_0, Q4_K, Q6_K, Q8_0
from wgpu_backend.errors import DeviceError, ShapeError
from wgpu_backend.graph.capabilities import Capabilities, Tile
from wgpu_backend.kernels.gpu import register_tiles
from wgpu_backend.kernels.gpu.cases import CASES
from wgpu_backend.kernels.gpu.pairs import IN_COLUMNS, f16_columns
from wgpu_backend.kernels.gpu.register_tiles import SMALL
from wgpu_backend.kernels.gpu.split_k import (
    MOST_PARTS,
    groups_per_part,
    linear_merge,
    linear_splits,
    tile_in_parts,
)
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.wgpu.dry_run import DryRunExecutor
from wgpu_backend.ops.linear.activation_rounding import q8_pair
from wgpu_backend.ops.linear.attributes import Q8, Q8_PAIR, VALUES
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.linear.q8 import q8_activations
from wgpu_backend.ops.op import fusions
from wgpu_backend.testing import nmse, values_of

EXACT = SUMMED
OF_F16 = 5e-6  # eleven bits, and sums of 32 in as many: up to 1e-6
LARGE = Tile(128, 64, 128)
ROWS, COLUMNS = 36, 35  # two of the smallest tiles each way, neither of them full
# As `linear` has them after rules: whether columns are rounded, and how precise sums are.
IN_F32, IN_F16 = (VALUES, "default"), (VALUES, "f16")
IN_PAIRS, IN_BYTES = (IN_COLUMNS, "f16"), (Q8, "default")


@pytest.fixture
def wide(executors, monkeypatch):
    monkeypatch.setattr(register_tiles, "_cheapest", lambda *_: SMALL)
    return executors("wide")


def columns(ctx, x, prologue):
    if prologue.form == "values":
        return tensor(ctx, x)
    if prologue.in_bytes:
        return q8_activations(tensor(ctx, x))
    return f16_columns(tensor(ctx, x))


@pytest.mark.parametrize(
    ("dtype", "groups", "part_groups", "kind"),
    [
        (F16, 11, 4, IN_F32),
        (Q4_0, 11, 4, IN_F16),
        pytest.param(Q4_K, 24, 8, IN_PAIRS, marks=pytest.mark.slow),
        (Q8_0, 11, 4, IN_BYTES),
        pytest.param(BF16, 5, 1, IN_F32, marks=pytest.mark.slow),
        pytest.param(F16, 9, 8, IN_PAIRS, marks=pytest.mark.slow),
        pytest.param(Q6_K, 24, 16, IN_F16, marks=pytest.mark.slow),
        pytest.param(IQ4_NL, 3, 3, IN_F16, marks=pytest.mark.slow),
        pytest.param(Q6_K, 24, 7, IN_BYTES, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_sums_of_parts_of_k(wide, check, rng, dtype, groups, part_groups, kind):
    (prologue, precision), k = kind, 32 * groups
    data = weight_bytes(rng, ROWS, k, dtype, k**-0.5)
    x = beside_ties(rng.standard_normal((COLUMNS, k), "f4"))

    def parts(ctx):
        w = weight(ctx._executor, ROWS, k, dtype, data)
        given = {"prologue": prologue, "precision": precision, "part_groups": part_groups}
        return linear_splits(w, columns(ctx, x, prologue), **given)

    exact = limit_of_bytes(wide, dtype) if prologue.in_bytes else EXACT
    check(wide, parts, limit=OF_F16 if precision == "f16" else exact)


def test_rows_of_a_weight_that_lies_in_several_bindings(executors, check, rng, monkeypatch):
    monkeypatch.setattr(register_tiles, "_cheapest", lambda *_: SMALL)
    data = weight_bytes(rng, 132, 512, F16, 1 / 16)
    x = rng.standard_normal((COLUMNS, 512), "f4")

    def product(ctx):
        w = weight(ctx._executor, 132, 512, F16, data)
        return linear_merge(linear_splits(w, tensor(ctx, x), part_groups=6))

    check(executors("split wide"), product, limit=EXACT)


@pytest.mark.parametrize("activation", [None, "silu", "gelu"])
@pytest.mark.parametrize("addend", [None, "bias", "residual", "part"])
def test_what_comes_behind_the_sums(wide, check, rng, activation, addend):
    x = rng.standard_normal((3, 2, 17, 40), "f4")
    m = 40 if activation is None else 20
    shape = {"bias": (m,), "residual": (2, 17, m), "part": (m + 3,)}
    added = None if addend is None else rng.standard_normal(shape[addend], "f4")

    def merged(ctx):
        other = None if added is None else tensor(ctx, added)
        other = other.slice(0, 3, m + 3) if addend == "part" else other
        return linear_merge(tensor(ctx, x), other, activation=activation)

    check(wide, merged, limit=EXACT)


def ops_of(executor, build):
    with Context(DryRunExecutor(executor, lambda shader: None)) as ctx:
        return [node.call.op.name for node, _ in ctx.record(build(ctx)).plan.steps]


KINDS = pytest.mark.parametrize("kind", ["plain", "bias", "residual", "gated"])


@KINDS
def test_a_product_of_long_rows_is_made_in_parts(wide, rng, monkeypatch, kind):
    """By rules of today."""
    monkeypatch.setattr(wide, "rules", fusions(exact=False, coarse=False))
    assert ops_of(wide, of_long_rows(rng, kind)) == ["linear_splits", "linear_merge"]


@pytest.mark.slow
@KINDS
def test_a_product_in_parts_is_right(wide, rng, monkeypatch, kind):
    """In f16 where there is such arithmetic; the same bits every time."""
    monkeypatch.setattr(wide, "rules", fusions(exact=False, coarse=False))
    product = of_long_rows(rng, kind)
    got = values_of(wide, product)
    np.testing.assert_array_equal(got, values_of(wide, product))
    assert nmse(got, values_of(NumpyExecutor(), product)) < OF_F16


def of_long_rows(rng, kind):
    m, k = 40, 1056
    w, x = rng.standard_normal((2 * m, k), "f4") / 32, rng.standard_normal((COLUMNS, k), "f4")
    bias, residual = rng.standard_normal(m, "f4"), rng.standard_normal((COLUMNS, m), "f4")

    def product(ctx):
        both, columns = tensor(ctx, w, F16), tensor(ctx, x)
        first, second = both.slice(0, 0, m), both.slice(0, m, 2 * m)
        if kind == "gated":
            return first.mulmat(columns).swiglu(second.mulmat(columns))
        if kind == "bias":
            return first.linear(columns, tensor(ctx, bias))
        y = second.mulmat(columns)
        return y if kind == "plain" else y + tensor(ctx, residual)

    return product


def test_the_self_test_makes_a_product_in_parts(wide, monkeypatch):
    [trial] = [each for each in CASES if each.rule == "linear_splits"]
    monkeypatch.setattr(wide, "rules", fusions(["linear_splits"], exact=True))
    found = ops_of(wide, lambda ctx: trial.build(ctx, np.random.default_rng(1)))
    assert found[-2:] == ["linear_splits", "linear_merge"]


@pytest.mark.parametrize(
    ("m", "n", "k", "why"),
    [
        (42, COLUMNS, 1056, "rows are no whole vectors"),
        (40, 16, 1056, "columns are few"),
        (40, COLUMNS, 992, "rows are short"),
        (4096, 512, 1056, "tiles are enough"),
    ],
)
def test_other_products_are_made_whole(executors, m, n, k, why):
    wide = executors("wide")

    def product(ctx):
        w = weight(ctx._executor, m, k, F16, bytes(2 * m * k))
        return w.mulmat(ctx.zeros(n, k))

    assert not {"linear_splits", "linear_merge"} & set(ops_of(wide, product)), why


@pytest.mark.parametrize(
    ("m", "n", "groups", "expected"),
    [
        (1024, 512, 128, 32),  # V of an 8B model: 64 tiles for 256
        (1024, 64, 128, 16),
        (4096, 64, 128, 16),
        (4096, 64, 448, 56),
        (4096, 256, 448, 224),
        (5120, 64, 128, 22),  # in six parts, the last one of 18
        (4096, 512, 448, 0),
        (28672, 64, 128, 0),
        (4, 17, 31, 0),
        (4, 17, 33, 18),
    ],
)
def test_parts_are_as_many_as_fill_a_device(m, n, groups, expected):
    found = groups_per_part(m, n, groups, LARGE)
    assert found == expected
    assert not found or 2 <= -(-groups // found) <= MOST_PARTS


@pytest.mark.parametrize(
    ("n", "tuned", "expected"),
    [(64, None, LARGE), (32, None, Tile(128, 32, 64)), (64, Tile(64, 64, 64), Tile(64, 64, 64))],
)
def test_products_in_parts_have_large_tiles(executors, n, tuned, expected):
    """The cheapest one, or what was measured; V's would be the smallest one otherwise."""
    known = (
        {}
        if tuned is None
        else {f"{name} q6_k many": tuned for name in (register_tiles.IN_F16, register_tiles.IN_F32)}
    )
    device = Capabilities(max_workgroup_nbytes=32768, f16=True, tuned=known)
    with Context(DryRunExecutor(executors("wide"), lambda shader: None)) as ctx:
        w = weight(ctx._executor, 1024, 4096, Q6_K, b"")
        for precision in ("default", "f16"):
            launch = linear.record(w, ctx.zeros(n, 4096), precision=precision)
            assert tile_in_parts(launch, device) == expected


def test_what_does_not_add_up_is_refused(wide, rng):
    with Context(wide) as ctx:
        w = weight(ctx._executor, 32, 64, Q4_0, weight_bytes(rng, 32, 64, Q4_0, 1.0))
        x = tensor(ctx, rng.standard_normal((20, 64), "f4"))
        with pytest.raises(ShapeError, match="2 groups in parts of 0"):
            linear_splits(w, x, part_groups=0)
        with pytest.raises(ShapeError, match="that are not pairs"):
            linear_splits(w, q8_pair(x), part_groups=1, prologue=Q8_PAIR)
        sums = tensor(ctx, np.zeros((2, 3, 12), "f4"))
        with pytest.raises(ShapeError, match="rows of 12 and 'silu', needs a multiple of 8"):
            linear_merge(sums, activation="silu")
        with pytest.raises(ShapeError, match=r"addend is \(5,\), needs \(12,\) or \(3, 12\)"):
            linear_merge(sums, tensor(ctx, np.zeros(5, "f4")))


def test_devices_without_tiles_say_what_they_need(executors, rng):
    with Context(as_rasteriser(executors("baseline"))) as ctx:
        w, x = (tensor(ctx, rng.standard_normal((20, 64), "f4")) for _ in range(2))
        with pytest.raises(DeviceError, match="linear_splits: the device has no kernel"):
            linear_splits(w, x, part_groups=1).numpy()
