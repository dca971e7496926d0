"""Attention of prompts in tiles of pairs of f16: which launches take it, and its values."""

import dataclasses

import numpy as np
import pytest

from tests.kernels.gpu.test_attention_matrix import attended, plain, shader_of
from tests.ops.operands import tensor
from tests.ops.test_attention import Case
from tests.ops.test_attention_options import CAUSAL, built, last_of
from wgpu_backend.device.wgsl.module import load
from wgpu_backend.dtypes import BF16, BOOL, F16, F32, Q4_0, Q8_0
from wgpu_backend.graph.capabilities import Capabilities, MatrixUnit
from wgpu_backend.kernels import select
from wgpu_backend.kernels.gpu.attention_matrix import rounded_attention
from wgpu_backend.kernels.gpu.attention_tiles import LEAST_ROWS, SIZES, AttentionTile
from wgpu_backend.kernels.gpu.conv_matrix import f16_pixels, magnitudes
from wgpu_backend.kernels.gpu.subgroups import has_eight_lanes
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.attention.dot_product import scaled_attention
from wgpu_backend.ops.attention.paged import paged_attention, paged_attention_splits
from wgpu_backend.ops.attention.splits import attention_merge, useful_splits
from wgpu_backend.ops.op import fusions
from wgpu_backend.testing import nmse, values_of

# Eleven bits of queries, keys, values and weights, and sums of up to 16 products in f16.
LIMIT = 2e-6
TILED, PORTABLE = "kernels/gpu/attention_tiled", "ops/attention/attention"
HARDWARE = Capabilities(subgroups=True, f16=True, max_workgroup_nbytes=48 << 10)


@pytest.fixture
def tiling(executors):
    found = executors("wide")
    if not (found.capabilities.f16 and has_eight_lanes(found.capabilities)):
        pytest.skip("needs a device with f16, and subgroups of eight lanes")
    return found


def prompt(rng, *, tokens=40, lengths=(70,), **how):
    """The last tokens of a few sequences."""
    return Case.random(rng, tokens=tokens, lengths=lengths, **how)


def launched(case, capabilities, dtype=F16, **options):
    """The launch of an attention on a device."""
    with Context(NumpyExecutor()) as ctx:
        scores = case.scores(f16=True, **options)
        node = paged_attention(*case.cached(ctx, dtype, dtype), scores=scores)
        return select(node.call.op, node.launch, capabilities)


def shader(*args, **options):
    return launched(*args, **options).shader


def has(**values):
    return dataclasses.replace(HARDWARE, **values)


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        (HARDWARE, TILED),
        (has(f16=False), PORTABLE),
        (has(subgroups=False), PORTABLE),
        (has(lanes=4), PORTABLE),
        (has(few_registers=True), PORTABLE),
        (has(max_workgroup_nbytes=12 << 10), PORTABLE),
        (has(max_workgroup_invocations=64), PORTABLE),
    ],
)
def test_devices_that_take_it(rng, capabilities, expected):
    assert shader(prompt(rng, cols=128), capabilities) == expected


def test_prompts_that_take_it(rng):
    def of(dtype=F16, **how):
        return shader(prompt(rng, **how), HARDWARE, dtype)

    assert of(cols=256) == of(cols=80) == of(cols=64, dtype=Q8_0) == TILED
    assert of(cols=260) == of(cols=64, dtype=F32) == PORTABLE
    assert of(tokens=20, lengths=(20, 20, 20, 20, 20)) == TILED
    assert of(tokens=4, lengths=(20,) * 20) == PORTABLE  # a tile of many sequences
    few = LEAST_ROWS // 2  # tokens of two heads
    assert [of(tokens=few + 1), of(tokens=few)] == [TILED, PORTABLE]


def test_values_that_are_columns_of_keys_keep_the_portable_kernel(rng):
    case = prompt(rng, cols=64)
    with Context(NumpyExecutor()) as ctx:
        q, k, _, *places = case.operands(ctx, F16, F16)
        node = paged_attention(q, k, k, *places, scores=case.scores(f16=True, v_cols=32))
        assert select(node.call.op, node.launch, HARDWARE).shader == PORTABLE


@pytest.mark.parametrize(
    ("nbytes", "cols", "rows", "keys"),
    [
        (48 << 10, 128, 64, 64),
        (32 << 10, 128, 64, 32),
        (32 << 10, 64, 64, 64),
        (48 << 10, 256, 32, 32),
        (32 << 10, 256, 32, 16),
        (16 << 10, 128, 32, 16),
    ],
)
def test_tiles_fit_workgroup_memory(rng, nbytes, cols, rows, keys):
    launch = launched(prompt(rng, cols=cols), has(max_workgroup_nbytes=nbytes))
    assert (launch.choices["ROWS"], launch.choices["KEYS"]) == (rows, keys)


def test_every_column_has_a_thread():
    for rows, keys, most in SIZES:
        for vec4s in range(1, most // 4 + 1):
            tile = AttentionTile(rows, keys, vec4s, vec4s)
            assert tile.v_fours * tile.v_lanes >= vec4s
            assert tile.v_lanes * rows == 128 * tile.v_rows
            assert tile.v_rows * tile.v_fours <= 16
            # Sums of 16 products at most are in each half of a pair.
            assert tile.k_step <= 4
            assert tile.pitch >= 2 * tile.k_eights >= vec4s
            assert tile.k_eights % tile.k_step == tile.pitch % 2 == 0


def test_prompts_are_split_for_as_many_groups_as_a_device_holds():
    # 256 tokens of 32 heads are 128 tiles of 64 rows, counted as eights of rows.
    assert [useful_splits(seen, 1024, prompt=True) for seen in (256, 8192)] == [1, 4]
    assert useful_splits(32768, 8192, prompt=True) == 1
    assert useful_splits(1024, 1, prompt=True) == 4  # none has fewer than 256 positions


@pytest.mark.gpu
def test_a_prompt_is_right(tiling, check, rng):
    check(tiling, built(prompt(rng), rng, f16=True, dtypes=(F16, F16)), limit=LIMIT)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("group", [1, 3, 8])
def test_heads_share_keys(tiling, check, rng, group):
    case = prompt(rng, heads=2 * group, cols=64, tokens=37)
    check(tiling, built(case, rng, f16=True, dtypes=(F16, F16)), limit=LIMIT)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("cols", "v_cols"), [(4, 4), (72, 72), (80, 80), (128, 128), (256, 256), (96, 64), (64, 132)]
)
def test_heads_of_every_size(tiling, check, rng, cols, v_cols):
    case = prompt(rng, cols=cols, v_cols=v_cols, tokens=35, lengths=(150,))
    assert shader(case, tiling.capabilities) == TILED
    check(tiling, built(case, rng, f16=True, dtypes=(F16, F16)), limit=LIMIT)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(("k_type", "v_type"), [(Q8_0, Q8_0), (Q4_0, Q4_0), (F16, Q8_0)], ids=str)
def test_caches_of_every_type(tiling, check, rng, k_type, v_type):
    case = prompt(rng, cols=64, lengths=(67, 40), tokens=33)
    # Reference and device round the cache alike but for ties.
    limit = LIMIT if k_type == F16 else 1e-5
    check(tiling, built(case, rng, f16=True, dtypes=(k_type, v_type)), limit=limit)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("names", [(name,) for name in CAUSAL] + [tuple(CAUSAL)], ids="-".join)
def test_options(tiling, check, rng, names):
    case = prompt(rng, lengths=(33, 1, 140), heads=6, tokens=30)
    # A temperature makes scores twice as large, and what is rounded off them.
    limit = 2 * LIMIT if "temperature" in names else LIMIT
    check(tiling, built(case, rng, names, f16=True, dtypes=(F16, F16)), limit=limit)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"symmetric_window": 8}], ids=str)
def test_pictures_see_what_is_behind_them(tiling, check, rng, options):
    lengths = (70, 33)
    case = prompt(rng, lengths=lengths, tokens=99)
    scores = case.scores(f16=True, causal=False, **options)
    ends = last_of(case, lengths)

    def build(ctx):
        operands = case.operands(ctx, F16, F16)
        return paged_attention(*operands, scores=scores, ends=ctx.from_numpy(ends))

    check(tiling, build, limit=LIMIT)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("block", [7, 32])
@pytest.mark.parametrize("splits", [2, 5])
def test_splits_joined_are_the_whole(tiling, check, rng, splits, block):
    case = prompt(rng, lengths=(300, 64), block=block, tokens=23)
    names = ("sinks", "softcap")
    build = built(case, rng, names, f16=True, splits=splits, dtypes=(F16, F16))
    check(tiling, build, limit=LIMIT)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("splits", [1, 3])
def test_tokens_that_see_nothing_give_zeros(tiling, check, rng, splits):
    case = prompt(rng, lengths=(40, 50))
    case.positions[[0, 3, 5]] = -1
    case.sequences[3] = -1
    build = built(case, rng, f16=True, splits=splits, dtypes=(F16, F16))
    check(tiling, build, limit=LIMIT)
    assert not values_of(tiling, build)[[0, 3, 5]].any()


@pytest.mark.gpu
@pytest.mark.slow
def test_queries_of_any_magnitude_and_large_keys(tiling, rng):
    case = prompt(rng, cols=64)
    for factor in (0, 1e-30, 1e-4, 1e4, 1e30):
        some = dataclasses.replace(case, q=case.q * np.float32(factor))
        scores = dataclasses.replace(some.scores(f16=True), scale=0.1 / max(factor, 1e-30))

        def build(ctx, some=some, scores=scores):
            return paged_attention(*some.operands(ctx, F16, F16), scores=scores)

        assert nmse(values_of(tiling, build), values_of(NumpyExecutor(), build)) < LIMIT
    # As biases of keys are: sums of 32 products are still below the largest f16, and scores of 800
    # are right to 2⁻¹¹ of that.
    large = dataclasses.replace(case, k=case.k + 4000, q=np.abs(case.q) + 30)
    scores = dataclasses.replace(large.scores(f16=True), scale=1e-4)

    def build(ctx):
        return paged_attention(*large.operands(ctx, F16, F16), scores=scores)

    assert nmse(values_of(tiling, build), values_of(NumpyExecutor(), build)) < 0.1


@pytest.mark.gpu
def test_a_rule_takes_it_where_rounding_is_allowed(tiling, rng, monkeypatch):
    case = prompt(rng, cols=64)

    def pairs(exact, dtype, splits=1):
        rules = fusions(["attention_tiles"], exact=exact)
        monkeypatch.setattr(tiling, "rules", rules)
        with Context(tiling) as ctx:
            operands, how = case.cached(ctx, dtype, dtype), {"scores": case.scores()}
            y = paged_attention(*operands, **how)
            if splits > 1:
                y = attention_merge(paged_attention_splits(*operands, splits=splits, **how))
            recorded = ctx.record(y)
            calls = (node.call for node, launch in recorded.plan.steps if "q" in launch.operands)
            found = [call.kwargs["scores"].f16 for call in calls]
            recorded.close()
        return found

    assert pairs(exact=False, dtype=F16) == pairs(exact=False, dtype=Q8_0, splits=3) == [True]
    assert pairs(exact=True, dtype=F16) == pairs(exact=False, dtype=F32) == [False]


def over_plain_keys(operands, dtype=F32, mask=None, **options):
    """Attention over plain keys with products in f16."""
    how = {"f16": True, "scale": operands[0].shape[-1] ** -0.5, **options}
    return attended(operands, dtype, mask, **how)


@pytest.mark.parametrize("cols", [40, 64, 72, 80, 128, 160, 256])
def test_towers_and_pictures_take_it(rng, cols):
    assert shader_of(over_plain_keys(plain(rng, cols=cols)), HARDWARE) == TILED


def test_what_plain_keys_fall_back_from(rng):
    def shader(device=HARDWARE, mask=None, f16=True, **how):
        return shader_of(over_plain_keys(plain(rng, **how), mask=mask, f16=f16), device)

    assert shader() == shader(heads=8, kv_heads=2, tokens=9) == TILED
    assert shader(mask=np.zeros((40, 70), "f4")) == TILED
    portable = {
        shader(f16=False),
        shader(cols=260),
        shader(cols=33),
        shader(tokens=32),
        shader(keys=31),
        shader(has(f16=False)),
        shader(has(lanes=4)),
        shader(has(few_registers=True)),
        shader(has(max_workgroup_invocations=64)),
    }
    assert portable == {""}


@pytest.mark.parametrize("exact", [False, True])
def test_rounding_over_plain_keys_is_what_a_rule_allows(rng, exact):
    executor = NumpyExecutor(HARDWARE)
    executor.rules = fusions(["scaled_attention_tiles"], exact=exact)
    with Context(executor) as ctx:
        recorded = ctx.record(over_plain_keys(plain(rng), f16=False)(ctx))
        found = [node.call.kwargs["f16"] for node, _ in recorded.plan.steps]
        recorded.close()
    assert found == [not exact]


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
        ({"cols": 36, "v_cols": 12, "keys": 65}, F32, {}),
        ({"cols": 16, "batch": 2}, BF16, {"causal": True, "window": 9}),
        ({"cols": 160, "tokens": 33, "keys": 35, "heads": 1, "kv_heads": 1}, F32, {}),
        ({"cols": 256, "tokens": 33, "keys": 35, "heads": 1, "kv_heads": 1}, F32, {}),
    ],
    ids=str,
)
def test_attention_over_plain_keys_is_right(tiling, rng, how, dtype, options):
    operands = plain(rng, **how)
    # Neither large keys, small values nor blocks of both leave f16.
    operands[0] *= 1e-7
    operands[1][:, :8] *= 1e-3
    operands[1] *= 1e7 if dtype != F16 else 1e4
    operands[2][:, 40:] *= 1e3
    operands[2] *= 1e-9 if dtype != F16 else 1
    assert shader_of(over_plain_keys(operands, dtype), tiling.capabilities) == TILED
    build = over_plain_keys(operands, dtype, **options)
    assert nmse(values_of(tiling, build), values_of(NumpyExecutor(), build)) < LIMIT


@pytest.mark.parametrize("matrix", [False, True])
def test_masks_and_sinks_are_read_as_what_they_are(rng, matrix):
    device = has(matrix=MatrixUnit(16, 16, 16, 32), max_workgroup_invocations=1024)
    mask = np.ones((40, 70), np.bool_)
    with Context(NumpyExecutor()) as ctx:
        q, k, v = (tensor(ctx, x) for x in plain(rng))
        sinks = tensor(ctx, np.zeros(4, "f4"), BF16)
        hidden = tensor(ctx, mask, BOOL)
        node = scaled_attention(q, k, v, hidden, sinks, scale=0.3, f16=True)
        if matrix:
            rounded = (f16_pixels(each, magnitudes(each)) for each in (k, v))
            shapes = {"k_shape": k.spec.shape, "v_shape": v.spec.shape}
            node = rounded_attention(q, *rounded, hidden, sinks, **shapes, scale=0.3)
        text = load(*select_text(node, device), trusted=True).text
    assert "var<storage, read> mask: array<u32>;" in text
    assert "var<storage, read> sinks: array<u32>;" in text


def select_text(node, device):
    """The shader of a node on a device, and its choices."""
    launch = select(node.call.op, node.launch, device)
    return launch.shader, launch.choices


def masks(rng, kind, tokens, keys):
    """A mask of a kind, in which one token sees nothing and one sees what all do not show."""
    mask = rng.standard_normal((4, tokens, keys), "f4")
    unseen = rng.random(mask.shape) < 1 / 3
    unseen[:, 3] = True
    if kind == "truths":
        return ~unseen
    lowest = np.finfo("f4").min if kind == "lowest" else -np.inf
    return np.where(unseen, np.float32(lowest), mask)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["truths", "numbers", "lowest"])
def test_masks_over_plain_keys(tiling, rng, kind):
    operands = plain(rng, batch=2, tokens=37, keys=70)
    mask = masks(rng, kind, 37, 70)
    build = over_plain_keys(operands, mask=mask)
    assert shader_of(build, tiling.capabilities) == TILED
    got = values_of(tiling, build)
    assert nmse(got, values_of(NumpyExecutor(), build)) < LIMIT
    # Hidden keys weigh nothing; of the lowest numbers a row has the mean of all values.
    if kind == "lowest":
        assert nmse(got[:, 3], operands[2].mean(axis=1)) < LIMIT
    else:
        assert not got[:, 3].any()
