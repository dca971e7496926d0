"""Norms, rotation and cache writes in one: as one op after the other, and what is fused."""

from itertools import pairwise

import numpy as np
import pytest

from tests.ops.fused import ran
from wgpu_backend.dtypes import F16, F32
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.attention.paged import Scores
from wgpu_backend.testing import nmse

RULES = ["rope_put", "heads_put"]
COLS, KV = 32, 2


def attention(ctx, wide, weights, *, form="before", dtype=F32, heads=4, **how):
    """Attention of three or one tokens in a cache of two blocks, with norms of heads."""
    tokens = len(wide)
    x = ctx.from_numpy(wide).tanh()
    sizes = np.cumsum([0, heads * COLS, KV * COLS, KV * COLS])
    q, k, v = (x.slice(1, int(a), int(b)).reshape(tokens, -1, COLS) for a, b in pairwise(sizes))
    frequencies = ctx.from_numpy(np.float32(0.1) ** np.arange(how.get("pairs", 16)))
    positions = ctx.from_ints(np.arange(tokens))
    table = positions.rope_table(frequencies)
    turn = {"interleaved": how.get("interleaved", False)}
    eps = how.get("eps", (1e-5, 1e-5))

    def made(x, weight, eps):
        weight = None if weight is None else ctx.from_numpy(weight)
        if form == "plain":
            return x.rms_norm(weight, eps=eps)
        if form == "after":
            return x.rope(table, **turn).rms_norm(weight, eps=eps)
        return x.rms_norm(weight, eps=eps).rope(table, **turn)

    q = made(q, weights[0], eps[0])
    k = k.rope(table, **turn) if how.get("queries_only") else made(k, weights[1], eps[1])
    v = v.rms_norm(eps=1e-5) if how.get("values") else v.contiguous()
    slots = ctx.from_ints(33 + np.arange(tokens))
    keys = ctx.zeros(64, KV * COLS, dtype=dtype).set_rows(k.reshape(tokens, -1), slots)
    values = ctx.zeros(64, KV * COLS, dtype=dtype).set_rows(v.reshape(tokens, -1), slots)
    before = [keys.cast(dtype=F32)] if how.get("keys_read") == "before" else []
    y = q.paged_attention(
        keys,
        values,
        positions,
        ctx.from_ints([0] * tokens),
        ctx.from_ints([1, 0], 1, 2),
        scores=Scores(block=32, scale=0.2, kv_heads=KV),
    )
    later = [keys.cast(dtype=F32)] if how.get("keys_read") == "later" else []
    return [y, *before, *later]


def drawn(rng, tokens, *, weighted=True):
    wide = rng.standard_normal((tokens, 8 * COLS)).astype("f4")
    weights = rng.standard_normal((2, COLS)).astype("f4")
    return wide, list(weights) if weighted else [None, None]


@pytest.mark.parametrize(
    ("tokens", "how"),
    [
        (3, {}),
        (3, {"form": "after", "interleaved": True, "dtype": F16}),
        (1, {"form": "plain", "values": True, "weighted": False}),
        (3, {"pairs": 8, "values": True, "dtype": F16}),
        (1, {"form": "after", "pairs": 4}),
        (3, {"keys_read": "later"}),
    ],
    ids=str,
)
def test_norms_rotation_and_writes_are_one_op(any_gpu, monkeypatch, rng, tokens, how):
    how = dict(how)
    wide, weights = drawn(rng, tokens, weighted=how.pop("weighted", True))
    names, got = ran(any_gpu, monkeypatch, RULES, lambda c: attention(c, wide, weights, **how))
    _, want = ran(NumpyExecutor(), monkeypatch, [], lambda c: attention(c, wide, weights, **how))
    # A device whose attention of one token does all of it keeps the norms for that.
    assert ("heads_put" in names) or (tokens == 1 and not how.get("values"))
    assert "set_rows" not in names or "heads_put" not in names
    for a, b in zip(got, want, strict=True):
        assert nmse(a, b) <= (1e-11 if how.get("dtype", F32) == F32 else 1e-6)


NEAR_MISSES = {
    "two epsilons": {"eps": (1e-5, 1e-2)},
    "queries alone": {"queries_only": True},
    "keys that others read before": {"keys_read": "before"},
}


@pytest.mark.parametrize("name", NEAR_MISSES)
@pytest.mark.parametrize("form", ["before", "after"])
def test_what_is_nearly_such_a_put_stays_right(monkeypatch, rng, name, form):
    wide, weights = drawn(rng, 3)
    how = NEAR_MISSES[name]

    def build(ctx):
        return attention(ctx, wide, weights, form=form, **how)

    names, got = ran(NumpyExecutor(), monkeypatch, RULES, build)
    _, want = ran(NumpyExecutor(), monkeypatch, [], build)
    assert "heads_put" not in names
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
