"""What tokens see besides their whole past, and what changes scores, alone and together."""

from itertools import combinations

import numpy as np
import pytest

from tests.ops.test_attention import LIMIT, Case
from tests.shares import rare, rare_on
from wgpu_backend.dtypes import F16, F32, I32, Q4_0, Q8_0
from wgpu_backend.errors import ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ops.attention import paged
from wgpu_backend.ops.attention.paged import (
    Pages,
    Scores,
    Temperature,
    alibi_slopes,
    attention,
    in_one_buffer,
    paged_attention,
    paged_attention_splits,
)
from wgpu_backend.ops.attention.paged import paged_attention_reference as numpy_attention
from wgpu_backend.ops.attention.splits import attention_merge

HEAT = Temperature(0.4, 7, 1)
# Options of scores, and operands that `terms` makes, by name.
CAUSAL = {
    "window": {"window": 9},
    "chunk": {"chunk": 8},
    "softcap": {"softcap": 3.0},
    "alibi": {"alibi": 8.0},
    "temperature": {"temperature": HEAT},
    "ends": {},
    "sinks": {},
    "bias": {},
}
OPERANDS = ("ends", "sinks", "bias")
REACH = 5


def terms(rng, case, names):
    """Arrays of the operands among some options: a third of the tokens has no end of its own."""
    count, heads = case.q.shape[:2]
    behind = case.positions + rng.integers(-2, 6, count)
    made = {
        "ends": np.minimum(behind, case.table.shape[1] * case.block - 1).astype("i4"),
        "sinks": rng.standard_normal(heads).astype("f4"),
        "bias": rng.standard_normal((heads, 2 * REACH + 1)).astype("f4"),
    }
    return {name: made[name] for name in names if name in OPERANDS}


def built(case, rng, names=(), *, splits=1, dtypes=(F32, F32), **options):
    """Graph of attention with the options of these names and others."""
    scores = case.scores(**options, **{k: v for name in names for k, v in CAUSAL[name].items()})
    arrays = terms(rng, case, names)

    def build(ctx):
        q, k, v, *places = case.cached(ctx, *dtypes)
        others = {n: ctx.from_numpy(a) for n, a in arrays.items()}
        pages = Pages(*places, case.block, others.pop("ends", None))
        if len(arrays) == len(OPERANDS):
            pages, others = pages.all_joined, in_one_buffer(others)
        operands = pages.operands
        operands = (q, k, v, *(operands.pop(n) for n in ("positions", "sequences", "table")))
        others |= {} if pages.ends is None else {"ends": pages.ends}
        if splits == 1:
            return paged_attention(*operands, scores=scores, **others)
        return attention_merge(
            paged_attention_splits(*operands, scores=scores, splits=splits, **others)
        )

    return build


# Portable kernels take lavapipe ten seconds each as hardware has them.
SPARED = [n if n in ("ends", "bias") else pytest.param(n, marks=rare_on("wide")) for n in CAUSAL]


@pytest.mark.parametrize("name", SPARED)
def test_every_option_alone(any_gpu, check, rng, name):
    case = Case.random(rng, lengths=(33, 1, 40), heads=6, tokens=5)
    check(any_gpu, built(case, rng, (name,)), limit=LIMIT)


@rare_on("wide")
@pytest.mark.parametrize("name", CAUSAL)
def test_every_option_of_one_token_over_splits(any_gpu, check, rng, name):
    case = Case.random(rng, lengths=(3, 257, 40), tokens=1)
    check(any_gpu, built(case, rng, (name,), splits=3), limit=LIMIT)


@rare
@pytest.mark.parametrize("names", list(combinations(CAUSAL, 2)), ids="-".join)
def test_every_two_options_together(full, check, rng, names):
    case = Case.random(rng, lengths=(33, 17), heads=6, tokens=3)
    check(full, built(case, rng, names, splits=2), limit=LIMIT)


@pytest.mark.parametrize("tokens", [1, 6])
@pytest.mark.parametrize(
    "dtype",
    [F16, *(pytest.param(d, marks=rare_on("wide")) for d in (F32, Q8_0, Q4_0))],
    ids=str,
)
def test_all_options_together_on_every_cache(any_gpu, check, rng, dtype, tokens):
    case = Case.random(rng, lengths=(33, 70), cols=64, v_cols=96, tokens=tokens)
    check(any_gpu, built(case, rng, tuple(CAUSAL), dtypes=(dtype, dtype)), limit=LIMIT)


def last_of(case, lengths):
    """Ends of the tokens of an encoder: the last position of their text."""
    return (np.array(lengths)[case.sequences] - 1).astype("i4")


@rare_on("wide")
@pytest.mark.parametrize(
    "options", [{}, {"symmetric_window": 1}, {"symmetric_window": 8}, {"alibi": 8.0}], ids=str
)
@pytest.mark.parametrize("lengths", [(1,), (3, 33), (40, 7)], ids=str)
def test_encoders_see_what_is_behind_them(any_gpu, check, rng, lengths, options):
    case = Case.random(rng, lengths=lengths, tokens=99)
    scores = case.scores(causal=False, **options)
    ends = last_of(case, lengths)
    check(
        any_gpu,
        lambda ctx: paged_attention(*case.operands(ctx), scores=scores, ends=ctx.from_numpy(ends)),
        limit=LIMIT,
    )


def test_an_encoder_with_a_relative_bias_is_the_formula(gpu, rng):
    """Against a matrix of scores, with a bias that T5 would look up by buckets."""
    case = Case.random(rng, lengths=(19,), heads=3, kv_heads=3, tokens=19)
    bias = rng.standard_normal((3, 2 * REACH + 1)).astype("f4")
    how = {"scale": 32**-0.5, "kv_heads": 3, "longest": 19, "causal": False}
    with Context(gpu) as ctx:
        q, k, v, *places = case.operands(ctx)
        pages = Pages(*places, case.block, ctx.from_numpy(last_of(case, (19,))))
        got = attention(q, k, v, pages, **how, bias=ctx.from_numpy(bias)).numpy()
    slots = case.table[0][np.arange(19) // 16] * 16 + np.arange(19) % 16
    keys, values = (a[slots].reshape(19, 3, -1) for a in (case.k, case.v))
    apart = np.clip(np.arange(19) - case.positions[:, None], -REACH, REACH) + REACH
    scores = np.einsum("thd,nhd->htn", case.q, keys) * 32**-0.5 + bias[:, apart]
    weights = np.exp(scores)
    weights /= weights.sum(axis=2, keepdims=True)
    np.testing.assert_allclose(got, np.einsum("htn,nhd->thd", weights, values), atol=2e-5)


def test_a_window_of_both_sides_counts_half_of_it_on_each(gpu, rng):
    case = Case.random(rng, lengths=(40,), heads=1, kv_heads=1, tokens=40)
    case.v[...] = 0
    slots = case.table[0][np.arange(40) // 16] * 16 + np.arange(40) % 16
    case.v[slots, 0] = 1
    case.v[slots, 1] = np.arange(40)
    case.q[...] = 0
    scores = case.scores(causal=False, symmetric_window=7)
    ends = last_of(case, (40,))
    with Context(gpu) as ctx:
        got = paged_attention(
            *case.operands(ctx), scores=scores, ends=ctx.from_numpy(ends)
        ).numpy()[:, 0]
    low, high = np.maximum(case.positions - 3, 0), np.minimum(case.positions + 3, 39)
    np.testing.assert_allclose(got[:, 1], (low + high) / 2, rtol=1e-6)


@pytest.mark.parametrize("heads", [1, 2, 6, 8, 12, 33])
def test_slopes_are_those_of_the_paper(rng, heads):
    """Press et al. 2022, footnote 5 of their code: every second slope of twice as many heads."""

    def of_power(n):
        return [2 ** (-8 * (i + 1) / n) for i in range(n)]

    whole = 2 ** int(np.log2(heads))
    want = (of_power(whole) + of_power(2 * whole)[::2])[:heads]
    np.testing.assert_allclose(alibi_slopes(heads, 8.0), want)


@rare_on("wide")
@pytest.mark.parametrize("heads", [6, 12])
def test_heads_of_no_power_of_two_have_slopes_between(any_gpu, check, rng, heads):
    case = Case.random(rng, lengths=(77,), heads=heads, kv_heads=heads // 2, tokens=4)
    check(any_gpu, case.build(alibi=8.0), limit=LIMIT)


@rare_on("wide")
def test_sinks_of_any_size_take_their_share(any_gpu, check, rng):
    case = Case.random(rng, lengths=(20, 3))
    sinks = np.array([-np.inf, -1e4, 30.0, 1e4], "f4")
    check(
        any_gpu,
        lambda ctx: paged_attention(
            *case.operands(ctx), scores=case.scores(), sinks=ctx.from_numpy(sinks)
        ),
        limit=LIMIT,
    )


@rare_on("wide")
def test_a_token_that_sees_only_a_sink_gives_zeros(any_gpu, rng):
    case = Case.random(rng, lengths=(20, 3), tokens=1)
    case.positions[1] = -1
    with Context(any_gpu) as ctx:
        got = built(case, rng, ("sinks", "ends", "alibi"))(ctx).numpy()
    assert not got[1].any()
    assert got[0].any()


@rare_on("wide")
@pytest.mark.parametrize(
    ("cols", "v_cols", "dtype"),
    [
        (96, 64, F16),
        (192, 160, Q8_0),
        pytest.param(576, 512, F16, marks=rare_on("wide")),
        pytest.param(64, 64, F32, marks=rare),
        pytest.param(576, 512, Q8_0, marks=rare),
        pytest.param(576, 512, F32, marks=rare),
    ],
    ids=str,
)
@pytest.mark.parametrize("tokens", [1, 3])
def test_values_may_be_the_first_columns_of_keys(any_gpu, check, rng, tokens, cols, v_cols, dtype):
    case = Case.random(rng, lengths=(9, 40), heads=4, kv_heads=1, cols=cols, tokens=tokens)

    def build(ctx):
        q, k, _, *places = case.cached(ctx, dtype, dtype)
        return paged_attention(q, k, k, *places, scores=case.scores(v_cols=v_cols))

    check(any_gpu, build, limit=LIMIT)


@rare_on("wide")
@pytest.mark.parametrize("splits", [1, 3])
def test_several_heads_of_keys_may_hold_their_values(any_gpu, check, rng, splits):
    case = Case.random(rng, lengths=(9, 300), heads=6, kv_heads=2, cols=48, tokens=1)

    def build(ctx):
        q, k, _, *places = case.operands(ctx)
        scores = case.scores(v_cols=32)
        if splits == 1:
            return paged_attention(q, k, k, *places, scores=scores)
        parts = paged_attention_splits(q, k, k, *places, scores=scores, splits=splits)
        return attention_merge(parts)

    check(any_gpu, build, limit=LIMIT)


def test_chunks_begin_anew(rng):
    """The first token of a chunk sees itself alone, which the reference has to know, too."""
    case = Case.random(rng, lengths=(20,), heads=1, kv_heads=1, tokens=20)
    places = case.positions, case.sequences, case.table
    got = numpy_attention(case.q, case.k, case.v, *places, scores=case.scores(chunk=8))
    for position in (0, 8, 16):
        slot = case.table[0, position // 16] * 16 + position % 16
        row = int(np.flatnonzero(case.positions == position)[0])
        np.testing.assert_allclose(got[row, 0], case.v[slot], rtol=1e-6)


def test_attention_takes_all_that_the_op_takes(gpu, check, rng):
    """Cut into dispatches, which have ends of their own tokens, and with places in one buffer."""
    case = Case.random(rng, lengths=(40, 33), tokens=20)
    arrays = terms(rng, case, OPERANDS)

    def attended(ctx):
        q, k, v, *_ = case.cached(ctx, Q8_0, Q8_0)
        places = case.operands(ctx)[3:]
        ends, sinks, bias = (ctx.from_numpy(arrays[name]) for name in OPERANDS)
        pages = Pages(*places, case.block, ends)
        how = {"scale": 0.2, "kv_heads": case.kv_heads, "longest": 40, "window": 5, "alibi": 4.0}
        return attention(q, k, v, pages, **how, temperature=HEAT, sinks=sinks, bias=bias)

    check(gpu, attended, limit=LIMIT)


def test_shared_values_need_no_tensor_of_their_own(gpu, check, rng):
    case = Case.random(rng, lengths=(40, 33), heads=4, kv_heads=1, cols=96, tokens=3)

    def attended(ctx):
        q, k, _, *places = case.operands(ctx)
        pages = Pages(*places, case.block)
        return attention(q, k, None, pages, scale=0.2, kv_heads=1, longest=40, v_cols=64)

    check(gpu, attended, limit=LIMIT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": -1}, "window is -1, needs 0 or more"),
        ({"causal": False, "window": 4}, "with causal=False they need to be 0; take symmetric"),
        ({"causal": False, "chunk": 4}, "with causal=False they need to be 0; take symmetric"),
        ({"symmetric_window": 4}, "a symmetric_window of 4 needs causal=False; take window"),
    ],
    ids=str,
)
def test_options_that_exclude_each_other_are_refused(options, message):
    with pytest.raises(ShapeError, match=message):
        Scores(16, 1.0, 2, **options)


def test_a_temperature_of_no_length_is_refused():
    with pytest.raises(ShapeError, match="steps of 0 positions"):
        Temperature(0.1, 0)


@pytest.mark.parametrize(
    ("options", "operands", "message"),
    [
        ({"causal": False}, {}, "a token sees up to its end; needs ends"),
        ({}, {"ends": (3,)}, r"ends is \(3,\), q has 2 tokens"),
        ({}, {"sinks": (3,)}, r"sinks is \(3,\), needs one for each of 4 heads"),
        ({}, {"bias": (4, 6)}, r"bias is \(4, 6\), needs \(4, 2 \* reach \+ 1\)"),
        ({}, {"bias": (3, 5)}, r"bias is \(3, 5\), needs \(4, 2 \* reach \+ 1\)"),
        ({"v_cols": 4}, {}, "the first 4 columns of keys of 8; needs keys for values"),
    ],
    ids=str,
)
def test_operands_that_do_not_fit_are_refused(full, options, operands, message):
    with Context(full) as ctx:
        made = {n: ctx.zeros(*s, dtype=I32 if n == "ends" else F32) for n, s in operands.items()}
        places = (ctx.zeros(2, dtype=I32), ctx.zeros(2, dtype=I32), ctx.zeros(1, 2, dtype=I32))
        q, k, v = ctx.zeros(2, 4, 8), ctx.zeros(32, 16), ctx.zeros(32, 16)
        with pytest.raises(ShapeError, match=message):
            paged_attention(q, k, v, *places, scores=Scores(16, 1.0, 2, **options), **made)


def dense(case, arrays, scores):
    """Attention by its formula in float64, a token and a head at a time, with masks of -inf."""
    tokens, heads, _ = case.q.shape
    made = []
    for token, (position, owner) in enumerate(zip(case.positions, case.sequences, strict=True)):
        end = arrays["ends"][token] if "ends" in arrays else position
        at = np.arange(case.table.shape[1] * case.block)
        slots = np.repeat(case.table[owner], case.block) * case.block + at % case.block
        sees = at <= max(position, end)
        if not scores.causal:
            half = scores.symmetric_window // 2 if scores.symmetric_window else len(at)
            sees = (at <= end) & (abs(at - position) <= half)
        if scores.window:
            sees &= at > position - scores.window
        if scores.chunk:
            sees &= at >= position // scores.chunk * scores.chunk
        for head in range(heads):
            own = head // (heads // case.kv_heads)
            k, v = (
                a.reshape(len(a), case.kv_heads, -1)[slots[sees], own].astype("f8")
                for a in (case.k, case.v)
            )
            heat = scores.temperature
            grown = np.log1p((position + heat.offset) // heat.length) * heat.factor if heat else 0
            found = k @ case.q[token, head].astype("f8") * scores.scale * (1 + grown)
            if scores.softcap:
                found = scores.softcap * np.tanh(found / scores.softcap)
            apart = at[sees] - position
            found -= alibi_slopes(heads, scores.alibi)[head] * abs(apart)
            if "bias" in arrays:
                found += arrays["bias"][head, np.clip(apart, -REACH, REACH) + REACH]
            e = np.exp(found)
            made.append(
                e @ v / (e.sum() + np.exp(arrays["sinks"][head] if "sinks" in arrays else -np.inf))
            )
    return np.reshape(made, (tokens, heads, -1))


@pytest.mark.parametrize(
    "names",
    [(), *((n,) for n in CAUSAL), ("window", "ends"), ("window", "chunk"), tuple(CAUSAL), "around"],
    ids=str,
)
@pytest.mark.parametrize("most", [1, 900, 1 << 21])
def test_numpy_computes_tokens_together_as_by_the_formula(rng, monkeypatch, names, most):
    monkeypatch.setattr(paged, "_MOST_SCORES", most)
    case = Case.random(rng, lengths=(33, 1, 47), heads=6, tokens=21)
    arrays, options = terms(rng, case, names), {}
    if names == "around":
        arrays, options = terms(rng, case, ("ends",)), {"causal": False, "symmetric_window": 8}
        arrays["ends"] = np.maximum(arrays["ends"], case.positions)
    scores = case.scores(**options, **{k: v for n in names for k, v in CAUSAL.get(n, {}).items()})
    places = (case.positions, case.sequences, case.table)
    y = numpy_attention(case.q, case.k, case.v, *places, scores=scores, **arrays)
    np.testing.assert_allclose(y, dense(case, arrays, scores), atol=2e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["k", "v"])
def test_numpy_keeps_what_is_not_finite_from_tokens_that_do_not_see_it(rng, name, value):
    case = Case.random(rng, lengths=(40,), tokens=20)
    places = (case.positions, case.sequences, case.table)
    scores = case.scores(window=9)
    want = numpy_attention(case.q, case.k, case.v, *places, scores=scores)
    spoilt = case.table[0, 30 // case.block] * case.block + 30 % case.block
    getattr(case, name)[spoilt] = value
    with np.errstate(invalid="ignore"):
        y = numpy_attention(case.q, case.k, case.v, *places, scores=scores)
    sees = (case.positions >= 30) & (case.positions < 39)
    np.testing.assert_allclose(y[~sees], want[~sees], atol=2e-6)
    assert not np.isfinite(y[sees]).all()


def test_numpy_makes_few_products_for_a_prompt(rng, monkeypatch):
    case, calls = Case.random(rng, lengths=(512,), tokens=512), []
    product = np.matmul
    monkeypatch.setattr(np, "matmul", lambda *a, **k: calls.append(a) or product(*a, **k))
    places = (case.positions, case.sequences, case.table)
    numpy_attention(case.q, case.k, case.v, *places, scores=case.scores())
    assert len(calls) == 2
