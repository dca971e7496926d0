"""Heads of a part that stays and a part that turns: as one op after the other, and what fuses."""

import numpy as np
import pytest

from tests.ops.fused import ran
from wgpu_backend.dtypes import F16, F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.attention.latent import rope_join
from wgpu_backend.ops.attention.paged import Scores
from wgpu_backend.testing import nmse

RULES = ["rope_join"]
ROWS = 40


def table_of(ctx, tokens, pairs):
    frequencies = ctx.from_numpy(np.float32(0.5) ** np.arange(pairs))
    return ctx.from_ints(np.arange(tokens) * 7 % 31).rope_table(frequencies)


def parts(ctx, wide, plain, turns, heads):
    """Both parts of heads that are wider than these."""
    whole = ctx.from_numpy(wide).reshape(len(wide), heads, -1)
    return whole.slice(2, 0, plain), whole.slice(2, plain, plain + turns)


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])
@pytest.mark.parametrize(
    ("tokens", "heads", "plain", "turns", "pairs"), [(1, 6, 64, 16, 8), (33, 3, 4, 24, 4)]
)
def test_queries_are_joined_as_by_simple_ops(
    any_gpu, monkeypatch, rng, interleaved, tokens, heads, plain, turns, pairs
):
    wide = rng.standard_normal((tokens, heads * (plain + turns + 8))).astype("f4")

    def build(ctx):
        own, rest = parts(ctx, wide, plain, turns, heads)
        turned = rest.rope(table_of(ctx, tokens, pairs), interleaved=interleaved)
        return [own.concat(turned, axis=2)]

    names, (got,) = ran(any_gpu, monkeypatch, RULES, build)
    _, (want,) = ran(NumpyExecutor(), monkeypatch, [], build)
    assert [n for n in names if n != "rope_table"] == ["rope_join"]
    assert nmse(got, want) <= 1e-12


def test_one_head_is_joined_to_each(any_gpu, monkeypatch, rng):
    wide, shared = (rng.standard_normal((5, n)).astype("f4") for n in (6 * 16, 8))

    def build(ctx):
        own, _ = parts(ctx, wide, 12, 4, 6)
        one = ctx.from_numpy(shared).reshape(5, 1, 8).rope(table_of(ctx, 5, 4)).repeat(1, 6)
        return [own.concat(one, axis=2)]

    names, (got,) = ran(any_gpu, monkeypatch, RULES, build)
    _, (want,) = ran(NumpyExecutor(), monkeypatch, [], build)
    assert [n for n in names if n != "rope_table"] == ["rope_join"]
    assert nmse(got, want) <= 1e-12


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("tokens", [1, 33])
def test_keys_go_into_the_cache_behind_a_norm(any_gpu, monkeypatch, rng, dtype, normed, tokens):
    wide = rng.standard_normal((tokens, 64 + 16)).astype("f4")
    weight = rng.standard_normal(64).astype("f4")
    slots = rng.permutation(ROWS)[:tokens].astype("i4")
    slots[1:3] = (-1, ROWS)[: len(slots[1:3])]  # no slots: their rows are not written

    def build(ctx):
        own, rest = parts(ctx, wide, 64, 16, 1)
        own = own.rms_norm(ctx.from_numpy(weight), eps=1e-5) if normed else own
        keys = own.concat(rest.rope(table_of(ctx, tokens, 8)), axis=2).reshape(tokens, 80)
        cache = ctx.zeros(ROWS, 80, dtype=dtype)
        return [cache.set_rows(keys, ctx.from_ints(slots))]

    names, (got,) = ran(any_gpu, monkeypatch, RULES, build)
    _, (want,) = ran(NumpyExecutor(), monkeypatch, [], build)
    assert [n for n in names if n not in ("rope_table", "fill")] == ["rope_join"]
    assert nmse(got, want) <= (1e-12 if dtype == F32 else 1e-7)  # halves round either way


NEAR_MISSES = {
    "two axes": lambda o, r, t, c, s: [o.reshape(5, -1).concat(r.rope(t).reshape(5, -1), axis=1)],
    "along heads": lambda o, r, t, c, s: [o.concat(o, axis=1)],
    "rotated first": lambda o, r, t, c, s: [r.rope(t).concat(o, axis=2)],
    "rotated and read": lambda o, r, t, c, s: (lambda y: [o.concat(y, axis=2), y])(r.rope(t)),
    "odd parts": lambda o, r, t, c, s: [o.slice(2, 0, 7).concat(r.rope(t), axis=2)],
    "nothing saved": lambda o, r, t, c, s: [o.contiguous().neg().concat(r.contiguous().neg(), axis=2)],  # noqa: E501
    "a norm of everything": lambda o, r, t, c, s: [
        c.set_rows(o.concat(r.rope(t), axis=2).rms_norm(eps=1e-5).reshape(5, 48), s)
    ],
    "keys that are read": lambda o, r, t, c, s: (
        lambda y: [c.set_rows(y.reshape(5, 48), s), y.neg()]
    )(o.concat(r.rope(t), axis=2)),
    "a norm that is read": lambda o, r, t, c, s: (
        lambda y: [c.set_rows(y.concat(r.rope(t), axis=2).reshape(5, 48), s), y.neg()]
    )(o.rms_norm(eps=1e-5)),
    "a norm of all heads": lambda o, r, t, c, s: [
        c.set_rows(
            o.reshape(5, 16).rms_norm(eps=1e-5).reshape(5, 2, 8).concat(r.rope(t), axis=2)
            .reshape(5, 48), s,
        )
    ],
    "rows in another order": lambda o, r, t, c, s: [
        c.reshape(ROWS * 2, 24).set_rows(
            o.concat(r.rope(t), axis=2).reshape(10, 24), s.concat(s.add(20), axis=0)
        )
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_is_nearly_such_a_join_stays_right(monkeypatch, rng, name):
    wide = rng.standard_normal((5, 2 * 24)).astype("f4")

    def build(ctx):
        own, rest = parts(ctx, wide, 8, 16, 2)
        cache, slots = ctx.zeros(ROWS, 48), ctx.from_ints([3, 9, 0, -1, 17])
        return NEAR_MISSES[name](own, rest, table_of(ctx, 5, 8), cache, slots)

    _, want = ran(NumpyExecutor(), monkeypatch, [], build)
    _, got = ran(NumpyExecutor(), monkeypatch, RULES, build)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_parts_that_vectors_do_not_divide_are_refused(rng):
    with Context(NumpyExecutor()) as ctx, pytest.raises(ShapeError, match="multiples of 4 and 8"):
        rope_join(ctx.zeros(1, 2, 6), ctx.zeros(1, 2, 8))


def latent_attention(
    ctx, wide, weight, slots, *, dtype=F32, rotated=True, key_table=None, apart=False
):
    """Attention of heads of 48 values to latents of 32, in a cache of two blocks."""
    tokens, heads = len(wide), 3
    table = table_of(ctx, tokens, 8)
    turned = lambda x, table: x.rope(table) if rotated else x  # noqa: E731
    own, rest = parts(ctx, wide[:, : heads * 56], 32, 16, heads)
    q = own.concat(turned(rest, table), axis=2)
    latents, shared = parts(ctx, wide[:, heads * 56 :], 32, 16, 1)
    latents = latents.neg() if apart else latents
    latents = latents if weight is None else latents.rms_norm(ctx.from_numpy(weight), eps=1e-5)
    other = table if key_table is None else ctx.from_numpy(key_table)
    keys = latents.concat(turned(shared, other), axis=2).reshape(tokens, 48)
    cache = ctx.zeros(64, 48, dtype=dtype).set_rows(keys, ctx.from_ints(slots))
    scores = Scores(block=32, scale=0.2, kv_heads=1, v_cols=32)
    positions, sequences = (ctx.from_ints(x) for x in (np.arange(tokens), [0] * tokens))
    blocks = ctx.from_ints([1, 0], 1, 2)
    y = q.paged_attention(cache, cache, positions, sequences, blocks, scores=scores)
    return [y, cache.cast(dtype=F32)]


@pytest.mark.parametrize(
    ("tokens", "how"),
    [(1, {}), (3, {"dtype": F16}), (3, {"rotated": False}), (2, {"normed": False})],
    ids=str,
)
def test_queries_and_keys_of_latent_attention_are_one_op(any_gpu, monkeypatch, rng, tokens, how):
    how = dict(how)
    wide = rng.standard_normal((tokens, 4 * 56), "f4")
    weight = rng.standard_normal(32, "f4") if how.pop("normed", True) else None
    slots = [33 + i for i in range(tokens)]
    slots[2:] = [-1] * len(slots[2:])
    build = lambda ctx: latent_attention(ctx, wide, weight, slots, **how)  # noqa: E731
    names, got = ran(any_gpu, monkeypatch, [*RULES, "latent_put"], build)
    _, want = ran(NumpyExecutor(), monkeypatch, [], build)
    assert "latent_put" in names
    assert not {"rope_join", "concat", "set_rows"} & set(names)
    for a, b in zip(got, want, strict=True):
        assert nmse(a, b) <= (1e-11 if how.get("dtype", F32) == F32 else 1e-6)


@pytest.mark.parametrize("how", [{"key_table": True}, {"apart": True}], ids=str)
def test_what_is_nearly_latent_attention_stays_right(monkeypatch, rng, how):
    wide, weight = rng.standard_normal((3, 4 * 56), "f4"), rng.standard_normal(32, "f4")
    how = {"key_table": rng.standard_normal((3, 8, 2), "f4")} if "key_table" in how else how
    build = lambda ctx: latent_attention(ctx, wide, weight, [33, 34, 35], **how)  # noqa: E731
    names, got = ran(NumpyExecutor(), monkeypatch, [*RULES, "latent_put"], build)
    _, want = ran(NumpyExecutor(), monkeypatch, [], build)
    assert "latent_put" not in names
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
