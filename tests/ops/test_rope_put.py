"""Rotation and cache write in one: the same queries, keys and values as one op after the other."""

from dataclasses import replace

import numpy as np
import pytest

from tests.ops.fused import ran
from wgpu_backend.dtypes import F16, F32
from wgpu_backend.ml.context import Context
from wgpu_backend.ops.attention.paged import Scores
from wgpu_backend.ops.attention.rope_put import rope_put
from wgpu_backend.ops.op import fusions

POSITIONS = 64


@pytest.fixture
def seed(rng):
    """A number from which the same operands are made again."""
    return int(rng.integers(1 << 30))


def operands(context, rng, tokens, heads, kv_heads, cols, v_cols, pairs, dtype, offset=0):
    """Parts of one wide result, as products of Q, K and V in one make them."""
    sizes = heads * cols, kv_heads * cols, kv_heads * v_cols
    wide = context.from_numpy(rng.standard_normal((tokens, offset + sum(sizes)))).tanh()
    parts, start = [], offset
    for size, count in zip(sizes, (heads, kv_heads, kv_heads), strict=True):
        parts.append(wide.slice(1, start, start + size).reshape(tokens, count, -1))
        start += size
    positions = context.from_ints(rng.integers(0, POSITIONS, tokens))
    frequencies = context.from_numpy(np.float32(0.5) ** np.arange(pairs))
    slots = rng.permutation(POSITIONS)[:tokens]
    slots[tokens // 2] = -1 if tokens > 1 else slots[0]
    caches = (
        context.zeros(POSITIONS, sizes[1], dtype=dtype),
        context.zeros(POSITIONS, sizes[2], dtype=dtype),
    )
    return [*parts, positions.rope_table(frequencies), context.from_ints(slots), *caches]


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])
@pytest.mark.parametrize(
    ("tokens", "heads", "kv_heads", "cols", "v_cols", "pairs", "offset"),
    [(1, 14, 2, 64, 64, 32, 0), (5, 4, 4, 32, 16, 8, 4), (33, 6, 2, 8, 40, 4, 0)],
)
def test_as_one_after_the_other(
    executor, seed, dtype, interleaved, tokens, heads, kv_heads, cols, v_cols, pairs, offset
):
    def made(fused):
        rng = np.random.default_rng(seed)
        with Context(executor) as context:
            q, k, v, table, slots, keys, values = operands(
                context, rng, tokens, heads, kv_heads, cols, v_cols, pairs, dtype, offset
            )
            if fused:
                y = rope_put(q, k, v, table, slots, keys, values, interleaved=interleaved)
                return [y.numpy(), keys.numpy(), values.numpy()]
            k = k.rope(table, interleaved=interleaved).reshape(tokens, -1)
            y = q.rope(table, interleaved=interleaved).numpy()
            v = v.contiguous().reshape(tokens, -1)
            return [y, keys.set_rows(k, slots).numpy(), values.set_rows(v, slots).numpy()]

    for got, want in zip(made(True), made(False), strict=True):
        np.testing.assert_array_equal(got, want)


def attended(context, rng, tokens=3, **keys_turn):
    q, k, v, table, slots, keys, values = operands(context, rng, tokens, 4, 2, 32, 32, 16, F16)
    k, v = k.rope(table, **keys_turn).reshape(tokens, -1), v.contiguous().reshape(tokens, -1)
    return [
        q.rope(table),
        keys.set_rows(k, slots),
        values.set_rows(v, slots),
        context.from_ints([3] * tokens),
        context.from_ints([0] * tokens),
        context.from_ints([0, 1], 1, 2),
    ]


SCORES = Scores(block=32, scale=0.3, kv_heads=2)


def test_stands_in_front_of_attention(full, seed, monkeypatch):
    def build(context):
        q, *rest = attended(context, np.random.default_rng(seed))
        return [q.paged_attention(*rest, scores=SCORES)]

    fused, got = ran(full, monkeypatch, ["rope_put"], build)
    apart, want = ran(full, monkeypatch, [], build)
    assert [n for n in fused if "attention" not in n][-1] == "rope_put"
    assert {"rope", "set_rows"} <= set(apart)
    assert not {"rope", "set_rows", "contiguous"} & set(fused)
    np.testing.assert_array_equal(got[0], want[0])


def test_queries_and_keys_of_other_rotations_stay_apart(full, seed, monkeypatch):
    def build(context):
        q, *rest = attended(context, np.random.default_rng(seed), interleaved=True)
        return [q.paged_attention(*rest, scores=SCORES)]

    ops, got = ran(full, monkeypatch, ["rope_put"], build)
    _, want = ran(full, monkeypatch, [], build)
    assert "rope_put" not in ops
    np.testing.assert_array_equal(got[0], want[0])


def test_a_cache_that_others_read_is_written_where_it_was(full, seed, monkeypatch):
    def build(context):
        q, keys, *rest = attended(context, np.random.default_rng(seed))
        return [keys.tanh(), q.paged_attention(keys, *rest, scores=SCORES)]

    ops, _ = ran(full, monkeypatch, ["rope_put"], build)
    assert "rope_put" not in ops


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("name", ["ends", "sinks", "bias"])
def test_operands_of_attention_stay_with_it(full, seed, monkeypatch, name, tokens):
    def build(context):
        rng = np.random.default_rng(seed)
        q, *rest = attended(context, rng, tokens)
        given = {
            "ends": context.from_ints([7] * tokens),
            "sinks": context.from_numpy(rng.standard_normal(4)),
            "bias": context.from_numpy(rng.standard_normal((4, 5))),
        }
        scores = replace(SCORES, alibi=8.0)
        return [q.paged_attention(*rest, scores=scores, **{name: given[name]})]

    # With what rounds attention on rasterisers, where that family is there.
    known = {rule.name for rules in fusions(exact=False).values() for rule in rules}
    rules = sorted(known & {"rope_put", "rope_attention", "paged_attention_q8"})
    ops, got = ran(full, monkeypatch, rules, build)
    _, want = ran(full, monkeypatch, [], build)
    takes_sinks = full.capabilities.compiles_tiles and tokens == 1 and name == "sinks"
    assert ("rope_attention" if takes_sinks else "rope_put") in ops
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5, atol=1e-6)


def test_a_cache_of_keys_alone_is_written_once(full, seed, monkeypatch):
    """Where values are columns of keys."""

    def build(context):
        q, keys, _, *places = attended(context, np.random.default_rng(seed))
        return [q.paged_attention(keys, keys, *places, scores=replace(SCORES, v_cols=16))]

    ops, got = ran(full, monkeypatch, ["rope_put", "rope_attention"], build)
    _, want = ran(full, monkeypatch, [], build)
    assert "rope_put" not in ops
    np.testing.assert_array_equal(got[0], want[0])
