"""Attention of many tokens by matrix units: which launches take it, and its values."""

import dataclasses

import numpy as np
import pytest

from tests.ops.operands import tensor
from tests.ops.test_attention import Case
from tests.ops.test_attention_options import CAUSAL, built, last_of
from wgpu_backend.dtypes import BF16, BOOL, F16, F32, Q4_0, Q8_0
from wgpu_backend.errors import DTypeError
from wgpu_backend.graph.capabilities import Capabilities, MatrixUnit
from wgpu_backend.kernels import select
from wgpu_backend.kernels.gpu import attention_matrix as module
from wgpu_backend.kernels.gpu.attention_matrix import MatrixTile, pick_size
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.attention.dot_product import scaled_attention
from wgpu_backend.ops.attention.paged import paged_attention
from wgpu_backend.ops.attention.splits import attention_merge
from wgpu_backend.ops.op import fusions
from wgpu_backend.testing import nmse, values_of

LIMIT = 5e-7  # eleven bits of queries, keys, values and weights; sums in f32
MATRIX, TILED = "kernels/gpu/attention_matrix", "kernels/gpu/attention_tiled"
NVIDIA = MatrixUnit(16, 16, 16, 32)
DEVICE = Capabilities(
    subgroups=True,
    f16=True,
    matrix=NVIDIA,
    max_workgroup_nbytes=48 << 10,
    max_workgroup_invocations=1024,
)


def prompt(rng, *, tokens=40, lengths=(70,), **how):
    """The last tokens of a few sequences."""
    return Case.random(rng, tokens=tokens, lengths=lengths, **how)


def launched(case, capabilities, dtype=F16, *, matrix=True):
    """The launch of an attention on a device."""
    with Context(NumpyExecutor()) as ctx:
        scores = case.scores(f16=True, matrix=matrix)
        node = paged_attention(*case.cached(ctx, dtype, dtype), scores=scores)
        return select(node.call.op, node.launch, capabilities)


@pytest.mark.parametrize(
    ("unit", "rows", "keys", "threads", "nbytes"),
    [
        (NVIDIA, 64, 64, 512, 48 << 10),
        (NVIDIA, 32, 32, 64, 32 << 10),
        (MatrixUnit(16, 16, 16, 64), 64, 64, 512, 48 << 10),
        (MatrixUnit(8, 16, 16, 16), 64, 64, 512, 48 << 10),
        (MatrixUnit(8, 8, 8, 32), 64, 64, 512, 48 << 10),
        (MatrixUnit(8, 8, 8, 8), 32, 32, 32, 32 << 10),
    ],
)
def test_tiles_are_whole_matrices_of_every_unit(rng, unit, rows, keys, threads, nbytes):
    device = dataclasses.replace(DEVICE, matrix=unit, max_workgroup_nbytes=nbytes)
    launch = launched(prompt(rng, cols=128), device)
    own = launch.choices
    assert (launch.shader, own["ROWS"], own["KEYS"], own["WG"]) == (MATRIX, rows, keys, threads)
    # Subgroups that share rows have whole matrices of them, and they are all rows.
    assert own["WG"] // unit.subgroup * own["RM"] * unit.m == own["SHARES"] * rows
    assert own["SHARES"] * own["KEY_TILES"] * unit.n == own["KEY_STEPS"] * unit.k == keys
    assert own["K_STEPS"] * unit.k == 128
    assert own["ROUNDS"] * own["FOURS"] * own["THREADS"] * 4 == 128
    tile = MatrixTile(rows, keys, 32, 32, unit, own["SHARES"])
    assert tile.nbytes <= nbytes
    assert own["PITCH"] * 4 >= 128 + 8


@pytest.mark.parametrize(
    ("cols", "most", "found"),
    [
        (80, 1024, (64, 64, 1)),
        (96, 1024, (64, 64, 1)),
        (128, 1024, (64, 64, 4)),
        (128, 256, (64, 64, 1)),  # fewer threads than four subgroups for each row
        (160, 1024, (64, 32, 2)),
        (160, 128, (64, 32, 1)),
    ],
)
def test_subgroups_share_rows_of_wide_heads(cols, most, found):
    device = dataclasses.replace(DEVICE, max_workgroup_invocations=most)
    tile = pick_size(cols // 4, cols // 4, device)
    assert (tile.rows, tile.keys, tile.shares) == found
    assert tile.keys // 4 % tile.row_threads == 0


def test_what_it_does_not_take_falls_back_to_tiles(rng):
    def shader(device=DEVICE, dtype=F16, **how):
        return launched(prompt(rng, **how), device, dtype).shader

    assert shader() == shader(dtype=Q8_0) == MATRIX
    assert shader(cols=160) == MATRIX
    assert shader(cols=164) == TILED
    assert shader(dataclasses.replace(DEVICE, matrix=None)) == TILED
    # More rows than threads.
    assert shader(dataclasses.replace(DEVICE, matrix=MatrixUnit(16, 16, 16, 8))) == TILED
    assert launched(prompt(rng), DEVICE, matrix=False).shader == TILED
    assert shader(dtype=F32) == shader(tokens=4) == "ops/attention/attention"


def test_the_rule_of_units_comes_before_that_of_tiles(rng):
    case = prompt(rng, cols=64)
    executor = NumpyExecutor(DEVICE)

    def scores(exact):
        executor.rules = fusions(["attention_matrix", "attention_tiles"], exact=exact)
        with Context(executor) as ctx:
            y = paged_attention(*case.cached(ctx, F16, F16), scores=case.scores())
            recorded = ctx.record(y)
            found = [n.call.kwargs["scores"] for n, _ in recorded.plan.steps if "q" in _.operands]
            recorded.close()
        return found[-1]

    assert scores(exact=False).matrix
    assert not scores(exact=True).f16


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "dtype"),
    [
        ({"cols": 16}, F16),
        ({"cols": 128, "heads": 2, "lengths": (40,), "tokens": 70}, F16),
        ({"cols": 64, "lengths": (300,)}, F16),
        ({"cols": 20, "v_cols": 36, "lengths": (33, 80), "tokens": 21}, F16),
        ({"cols": 32, "heads": 6, "tokens": 23}, Q8_0),
        ({"cols": 32, "heads": 2, "tokens": 70}, Q4_0),
    ],
    ids=str,
)
def test_a_prompt_is_right(units, rng, how, dtype):
    case = prompt(rng, **how)
    assert launched(case, units.capabilities, dtype).shader == MATRIX
    build = built(case, rng, f16=True, matrix=True, dtypes=(dtype, dtype))
    # Reference and device round the cache alike but for ties.
    limit = LIMIT if dtype == F16 else 1e-5
    assert nmse(values_of(units, build), values_of(NumpyExecutor(), build)) < limit


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(("size", "shares"), [((32, 64), 4), ((32, 64), 2), ((64, 32), 2)])
def test_subgroups_that_share_rows_are_right(units, rng, monkeypatch, size, shares):
    # Narrow heads, which compile in seconds; the last columns are no whole matrices of each share.
    monkeypatch.setattr(module, "SHARED", ((80, size, shares),))
    monkeypatch.setattr(units, "rules", fusions(["scaled_attention_matrix"], exact=False))
    case = prompt(rng, cols=20, v_cols=36, lengths=(33, 80), tokens=50)
    launch = launched(case, units.capabilities)
    assert (launch.choices["KEYS"], launch.choices["SHARES"]) == (size[1], shares)
    build = built(case, rng, f16=True, matrix=True, dtypes=(F16, F16))
    assert nmse(values_of(units, build), values_of(NumpyExecutor(), build)) < LIMIT
    build = attended(plain(rng, cols=20, v_cols=36), softcap=2.0)
    assert nmse(values_of(units, build), values_of(NumpyExecutor(), build)) < LIMIT


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("names", [*((name,) for name in CAUSAL), tuple(CAUSAL)], ids="-".join)
def test_options(units, rng, names, splits):
    case = prompt(rng, lengths=(33, 1, 140), heads=6, tokens=30, cols=16)
    how = {"f16": True, "matrix": True, "dtypes": (F16, F16)}
    build = built(case, rng, names, splits=splits, **how)
    assert nmse(values_of(units, build), values_of(NumpyExecutor(), build)) < LIMIT


@pytest.mark.gpu
@pytest.mark.slow
def test_pictures_see_what_is_behind_them_and_padding_nothing(units, rng):
    lengths = (70, 33)
    case = prompt(rng, lengths=lengths, tokens=99, cols=16)
    case.positions[[0, 5]] = -1
    scores, ends = case.scores(f16=True, matrix=True, causal=False), last_of(case, lengths)

    def build(ctx):
        operands = case.operands(ctx, F16, F16)
        return paged_attention(*operands, scores=scores, ends=ctx.from_numpy(ends))

    got = values_of(units, build)
    assert nmse(got, values_of(NumpyExecutor(), build)) < LIMIT
    assert not got[[0, 5]].any()


def plain(rng, *, batch=1, tokens=40, keys=70, heads=4, kv_heads=4, cols=40, v_cols=None):
    """Queries, keys and values without a cache."""
    shapes = ((tokens, heads, cols), (keys, kv_heads, cols), (keys, kv_heads, v_cols or cols))
    return [rng.standard_normal((batch, *shape), "f4") for shape in shapes]


def attended(operands, dtype=F32, mask=None, **options):
    """Attention over plain keys."""

    def build(ctx):
        q, k, v = operands
        rest = (tensor(ctx, k, dtype), tensor(ctx, v, dtype))
        kind = BOOL if mask is not None and mask.dtype == np.bool_ else F32
        hidden = None if mask is None else tensor(ctx, mask, kind)
        splits = options.get("splits", 1)
        how = {"scale": 0.3, **options}
        y = scaled_attention(tensor(ctx, q), *rest, hidden, **how)
        return attention_merge(y) if splits > 1 else y

    return build


def shader_of(build, capabilities):
    """The shader that a device takes for a node."""
    with Context(NumpyExecutor()) as ctx:
        node = build(ctx)
        return select(node.call.op, node.launch, capabilities).shader


def taken(build, device=DEVICE, *, exact=False):
    """Names of the ops that the rules leave, and the shader of the last."""
    executor = NumpyExecutor(device)
    rules = ["scaled_attention_matrix", "scaled_attention_tiles"]
    executor.rules = fusions(rules, exact=exact)
    with Context(executor) as ctx:
        recorded = ctx.record(build(ctx))
        steps = list(recorded.plan.steps)
        recorded.close()
    node, launch = steps[-1]
    shader = select(node.call.op, launch, device).shader
    return [each.call.op.name for each, _ in steps], shader


@pytest.mark.parametrize("cols", [40, 64, 72, 80, 128, 160])
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
def test_towers_and_pictures_take_it(rng, cols, dtype):
    names, shader = taken(attended(plain(rng, cols=cols), dtype))
    rounds = [] if dtype == F16 else ["magnitudes", "f16_pixels"] * 2
    assert names == [*rounds, "rounded_attention"]
    assert shader == MATRIX


def test_keys_of_another_type_are_refused(rng):
    with Context(NumpyExecutor()) as ctx:
        q, k, v = (tensor(ctx, x) for x in plain(rng))
        with pytest.raises(DTypeError, match="rounded_attention: k is f32"):
            module.rounded_attention(q, k, v, scale=0.3)


def not_finite(rng):
    """Queries, keys and values, one of each head but the first and the last not finite."""
    q, k, v = plain(rng, cols=16)
    k[0, 3, 1, 2], k[0, 4, 1, 2] = np.inf, -np.inf
    v[0, 5, 2, 7] = np.nan
    return q, k, v


def assert_other_heads_are_right(executor, operands):
    """Compare heads that see numbers alone; the others are not numbers, as in f32."""
    build = attended(operands)
    got, wanted = values_of(executor, build), values_of(NumpyExecutor(), build)
    assert nmse(got[..., [0, 3], :], wanted[..., [0, 3], :]) < LIMIT
    assert np.isnan(got[..., 1, :]).any() == np.isnan(wanted[..., 1, :]).any()
    assert np.isnan(got[..., 2, 7]).all()
    assert nmse(got[..., 2, :7], wanted[..., 2, :7]) < LIMIT


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_what_is_not_finite_takes_no_digits_of_other_heads(rng):
    executor = NumpyExecutor(DEVICE)
    executor.rules = fusions(["scaled_attention_matrix"], exact=False)
    assert_other_heads_are_right(executor, not_finite(rng))


@pytest.mark.parametrize("operand", [1, 2], ids=["key", "value"])
@pytest.mark.parametrize("outlier", [1e4, 1e8])
def test_an_outlier_takes_no_digits_of_other_heads(rng, operand, outlier):
    executor = NumpyExecutor(DEVICE)
    executor.rules = fusions(["scaled_attention_matrix"], exact=False)
    operands = plain(rng)
    operands[operand][0, 3, 0, 2] = outlier
    got, wanted = (values_of(each, attended(operands)) for each in (executor, NumpyExecutor()))
    # f16 has 2^29 between its largest and its smallest number of eleven bits.
    assert 0 < nmse(got[..., 1:, :], wanted[..., 1:, :]) < LIMIT


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_what_is_not_finite_stays_in_its_head(units, rng, monkeypatch):
    monkeypatch.setattr(units, "rules", fusions(["scaled_attention_matrix"], exact=False))
    assert_other_heads_are_right(units, not_finite(rng))


def test_what_plain_keys_fall_back_from(rng):
    def shader(device=DEVICE, mask=None, exact=False, **how):
        return taken(attended(plain(rng, **how), mask=mask), device, exact=exact)[1]

    assert shader() == shader(heads=8, kv_heads=2, tokens=9) == MATRIX
    assert shader(mask=np.zeros((40, 70), "f4")) == shader(mask=np.ones((40, 70), "?")) == MATRIX
    in_tiles = {shader(cols=164), shader(dataclasses.replace(DEVICE, matrix=None))}
    assert in_tiles == {TILED}
    portable = {
        shader(exact=True),
        shader(cols=33),
        shader(tokens=32),
        shader(keys=31),
    }
    assert portable == {""}


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "dtype", "options"),
    [
        ({"cols": 40}, F32, {}),
        ({"cols": 40}, F16, {}),
        ({"cols": 64, "keys": 257, "batch": 2}, F32, {"splits": 3}),
        ({"cols": 72, "keys": 77, "tokens": 33}, BF16, {}),
        ({"cols": 80, "heads": 8, "kv_heads": 2, "tokens": 21, "batch": 3}, F16, {"softcap": 2.0}),
        ({"cols": 128, "v_cols": 64, "keys": 64}, F32, {"causal": True}),
        ({"cols": 16, "batch": 2}, BF16, {"causal": True, "window": 9}),
        ({"cols": 160, "tokens": 33, "keys": 35, "heads": 1, "kv_heads": 1}, F32, {}),
    ],
    ids=str,
)
def test_attention_over_plain_keys_is_right(units, rng, monkeypatch, how, dtype, options):
    monkeypatch.setattr(units, "rules", fusions(["scaled_attention_matrix"], exact=False))
    operands = plain(rng, **how)
    # Neither large keys, small values nor blocks of both leave f16.
    operands[0] *= 1e-7
    operands[1][:, :8] *= 1e-3
    operands[1] *= 1e7 if dtype != F16 else 1e4
    operands[2][:, 40:] *= 1e3
    operands[2] *= 1e-9 if dtype != F16 else 1
    assert taken(attended(operands, dtype), units.capabilities)[1] == MATRIX
    build = attended(operands, dtype, **options)
    assert nmse(values_of(units, build), values_of(NumpyExecutor(), build)) < LIMIT


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["truths", "numbers", "hidden"])
def test_masks_are_right(units, rng, monkeypatch, kind):
    monkeypatch.setattr(units, "rules", fusions(["scaled_attention_matrix"], exact=False))
    mask = rng.standard_normal((4, 40, 70), "f4")
    if kind == "hidden":
        mask[mask > 0.5] = -np.inf
        # A row that sees nothing, and one whose scores are all the lowest number.
        mask[1, 5], mask[2, 7] = -np.inf, np.finfo("f4").min
    build = attended(plain(rng, cols=16), mask=mask > 0 if kind == "truths" else mask)
    assert taken(build, units.capabilities)[1] == MATRIX
    assert nmse(values_of(units, build), values_of(NumpyExecutor(), build)) < LIMIT


@pytest.mark.gpu
@pytest.mark.slow
def test_sums_shrink_where_scores_grow(units, rng, monkeypatch):
    monkeypatch.setattr(units, "rules", fusions(["scaled_attention_matrix"], exact=False))
    q, k, v = plain(rng, cols=16, keys=300)
    # Rows of some heads score higher from block to block, others lower, by far more than the slack.
    k *= np.linspace(0.1, 30, 300, dtype="f4")[:, None, None]
    k[:, :, 1] = k[:, ::-1, 1]
    build = attended([q, k, v])
    # Rounding shows in weights as much as scores are large, here up to a hundred: 1.5e-6.
    assert nmse(values_of(units, build), values_of(NumpyExecutor(), build)) < 10 * LIMIT
