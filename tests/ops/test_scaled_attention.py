import numpy as np
import pytest

from tests.ops.operands import FLOATS, LAYOUTS, tensor, weight_bytes
from wgpu_backend.dtypes import BF16, BOOL, F16, F32, Q4_0, Q8_0
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import leaf
from wgpu_backend.ops.attention.dot_product import scaled_attention
from wgpu_backend.ops.attention.splits import attention_merge

# Scores, exponentials and sums in f32 on both sides, in another order.
LIMIT = 1e-10


def heads(rng, batch=1, tokens=5, keys=9, q_heads=4, kv_heads=2, k_cols=32, v_cols=32):
    return (
        rng.standard_normal((batch, tokens, q_heads, k_cols), "f4"),
        rng.standard_normal((batch, keys, kv_heads, k_cols), "f4"),
        rng.standard_normal((batch, keys, kv_heads, v_cols), "f4"),
    )


def attended(operands, *, mask=None, mask_dtype=F32, sinks=None, vmla=None, **options):
    def build(ctx):
        q, k, v = (tensor(ctx, o) for o in operands)
        return q.scaled_dot_product_attention(
            k,
            v,
            None if mask is None else tensor(ctx, mask, mask_dtype),
            None if sinks is None else tensor(ctx, sinks),
            None if vmla is None else tensor(ctx, vmla),
            **{"scale": operands[0].shape[-1] ** -0.5, **options},
        )

    return build


def joined(operands, splits, *, mask=None, sinks=None, **options):
    """Attention in as many ranges of keys."""

    def build(ctx):
        given = (None if n is None else tensor(ctx, n) for n in (*operands, mask, sinks))
        return attention_merge(scaled_attention(*given, splits=splits, scale=0.2, **options))

    return build


def is_cut(y):
    """Whether a result is a view of what ranges of keys were joined to."""
    return y.source is not None and y.source.call.op is attention_merge


def hidden(rng, *shape):
    """Additive mask with a third of the keys hidden."""
    mask = rng.standard_normal(shape).astype("f4")
    return np.where(rng.random(shape) < 1 / 3, np.float32(-np.inf), mask)


@pytest.mark.slow
@pytest.mark.parametrize("cols", [1, 33, 64, 80, 128, 256, 576])
def test_heads_of_every_size(any_gpu, check, rng, cols):
    check(any_gpu, attended(heads(rng, k_cols=cols, v_cols=cols)), limit=LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize(("k_cols", "v_cols"), [(192, 128), (32, 257), (33, 1)])
def test_keys_and_values_of_different_sizes(any_gpu, check, rng, k_cols, v_cols):
    check(any_gpu, attended(heads(rng, k_cols=k_cols, v_cols=v_cols)), limit=LIMIT)


@pytest.mark.parametrize("mode", ["none", "causal"])
@pytest.mark.parametrize("keys", [1, 8, 65, 257])
@pytest.mark.parametrize("tokens", [1, 2, 33])
def test_any_number_of_tokens_and_keys(any_gpu, check, rng, tokens, keys, mode):
    operands = heads(rng, tokens=tokens, keys=keys, k_cols=32)
    check(any_gpu, attended(operands, mask_mode=mode), limit=LIMIT)


@pytest.mark.parametrize("splits", [2, 5, 32])
@pytest.mark.parametrize("keys", [1, 33, 257, 1000, 4097])
@pytest.mark.parametrize("tokens", [1, 6])
def test_keys_may_be_cut_into_ranges(gpu, check, rng, tokens, keys, splits):
    operands = heads(rng, tokens=tokens, keys=keys)
    check(gpu, joined(operands, splits), limit=LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"causal": True}, {"window": 100}, {"causal": True, "window": 700}, {"softcap": 2.0}],
    ids=str,
)
@pytest.mark.parametrize("keys", [1, 33, 257, 1000, 4097])
def test_ranges_know_what_a_token_sees(any_gpu, check, rng, keys, options):
    operands = heads(rng, batch=2, tokens=7, keys=keys, k_cols=33, v_cols=36)
    sinks = np.array([-50, -1, 1, 50], "f4")
    mask = hidden(rng, 4, 7, keys)
    mask[:, 3, : keys // 2] = -np.inf  # whole ranges
    mask[:, 4] = -np.inf
    check(any_gpu, joined(operands, 7, **options), limit=LIMIT)
    check(any_gpu, joined(operands, 7, mask=mask, sinks=sinks, **options), limit=LIMIT)


@pytest.mark.parametrize("keys", [511, 512, 1000, 4097])
@pytest.mark.parametrize(("k_cols", "v_cols"), [(64, 64), (192, 128), (64, 33)])
def test_long_keys_are_cut_by_themselves(any_gpu, check, rng, k_cols, v_cols, keys):
    operands = heads(rng, tokens=2, keys=keys, k_cols=k_cols, v_cols=v_cols)

    def build(ctx):
        found = attended(operands, mask_mode="causal")(ctx)
        assert is_cut(found) == (keys >= 512 and v_cols % 4 == 0)
        return found

    check(any_gpu, build, limit=LIMIT)


def test_a_window_or_many_heads_need_no_ranges(full, rng):
    with Context(full) as ctx:
        for operands, options in [
            (heads(rng, keys=1000, tokens=1), {"window": 300}),
            (heads(rng, keys=1000, tokens=1, q_heads=130), {}),
        ]:
            assert not is_cut(attended(operands, **options)(ctx))


def test_heads_are_projected_and_turned_after_the_join(any_gpu, check, rng):
    operands = heads(rng, batch=2, tokens=3, keys=600)
    vmla = rng.standard_normal((4, 7, 32), "f4")
    check(any_gpu, attended(operands, vmla=vmla), limit=LIMIT)
    turned = [o.swapaxes(1, 2).copy() for o in operands]
    check(any_gpu, attended(turned, heads_first=True), limit=LIMIT)
    check(any_gpu, attended([o[0] for o in operands]), limit=LIMIT)


@pytest.mark.parametrize("how", [{"tokens": 0}, {"batch": 0}, {"q_heads": 0}], ids=str)
def test_nothing_over_long_keys_gives_nothing(any_gpu, check, rng, how):
    check(any_gpu, attended(heads(rng, **{"keys": 1000, **how})), limit=0)


@pytest.mark.parametrize(("splits", "cols"), [(0, 32), (257, 32), (2, 33)])
def test_ranges_are_refused_that_cannot_be_joined(full, rng, splits, cols):
    with Context(full) as ctx, pytest.raises(ShapeError, match=f"{splits} splits of heads of"):
        joined(heads(rng, v_cols=cols), splits)(ctx)


@pytest.mark.parametrize(("q_heads", "kv_heads"), [(1, 1), (3, 3), (8, 2), (6, 1)])
@pytest.mark.parametrize("batch", [1, 3])
def test_heads_share_keys_and_batches_do_not(gpu, check, rng, batch, q_heads, kv_heads):
    operands = heads(rng, batch=batch, q_heads=q_heads, kv_heads=kv_heads)
    check(gpu, attended(operands), limit=LIMIT)


def test_a_causal_token_sees_itself_and_what_was_before(any_gpu, rng):
    q, k, v = heads(rng, tokens=3, keys=8)
    with Context(any_gpu) as ctx:
        build = attended((q, k, v), mask_mode="causal")
        got = build(ctx).numpy()
        for token in range(3):
            until = 6 + token
            part = (q[:, token : token + 1], k[:, :until], v[:, :until])
            alone = attended(part)(ctx).numpy()
            np.testing.assert_allclose(got[:, token : token + 1], alone, atol=1e-5)


@pytest.mark.parametrize("mode", ["", "causal"])
@pytest.mark.parametrize("window", [1, 9, 100])
@pytest.mark.parametrize(("tokens", "keys"), [(1, 33), (33, 33), (5, 70)])
def test_a_window_hides_what_is_far_back(any_gpu, check, rng, tokens, keys, window, mode):
    operands = heads(rng, tokens=tokens, keys=keys)
    check(any_gpu, attended(operands, window=window, mask_mode=mode), limit=LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(), (5, 9), (5, 1), (4, 1, 9), (3, 4, 5, 9)], ids=str)
def test_a_mask_is_added_and_broadcasts(gpu, check, rng, shape, dtype):
    mask = hidden(rng, *shape)
    check(gpu, attended(heads(rng, batch=3), mask=mask, mask_dtype=dtype), limit=LIMIT)


def test_a_mask_of_lowest_numbers_weighs_keys_alike(any_gpu, rng):
    q, k, v = heads(rng, tokens=2, keys=600)
    mask = np.full((2, 600), np.finfo("f4").min)
    mask[1, 7] = 0
    with Context(any_gpu) as ctx:
        got = attended((q, k, v), mask=mask)(ctx).numpy()
    mean = np.repeat(v.mean(axis=1), 2, axis=1)
    np.testing.assert_allclose(got[:, 0], mean, atol=1e-5)
    np.testing.assert_allclose(got[:, 1], np.repeat(v[:, 7], 2, axis=1), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(5, 9), (4, 1, 9), (3, 4, 5, 9)], ids=str)
def test_a_mask_may_say_what_is_seen(any_gpu, check, rng, shape):
    mask = rng.random(shape) < 0.6
    check(any_gpu, attended(heads(rng, batch=3), mask=mask, mask_dtype=BOOL), limit=LIMIT)


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("dtype", [F32, F16, BOOL], ids=str)
def test_a_token_that_sees_nothing_gets_zeros(any_gpu, check, rng, dtype, sinks):
    mask = hidden(rng, 5, 70)
    mask[2] = -np.inf
    mask[3, :64] = -np.inf  # a whole tile of keys
    mask[4, 1:] = -np.inf
    wanted = np.isfinite(mask) if dtype == BOOL else mask
    logits = np.array([-1, 0, 2, 40], "f4") if sinks else None
    build = attended(heads(rng, keys=70), mask=wanted, mask_dtype=dtype, sinks=logits)
    check(any_gpu, build, limit=LIMIT)
    with Context(any_gpu) as ctx:
        assert not build(ctx).numpy()[:, 2].any()


def test_more_tokens_than_keys_leave_the_first_without_any(any_gpu, check, rng):
    build = attended(heads(rng, tokens=9, keys=4), mask_mode="causal")
    check(any_gpu, build, limit=LIMIT)
    with Context(any_gpu) as ctx:
        assert not build(ctx).numpy()[:, :5].any()


@pytest.mark.parametrize("how", [{"tokens": 0}, {"keys": 0}, {"batch": 0}], ids=str)
def test_nothing_gives_nothing(any_gpu, check, rng, how):
    check(any_gpu, attended(heads(rng, **how)), limit=0)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["none", "causal"])
def test_sinks_take_part_of_the_weight(any_gpu, check, rng, mode):
    sinks = np.array([-50, -1, 1, 50], "f4")
    check(any_gpu, attended(heads(rng), sinks=sinks, mask_mode=mode), limit=LIMIT)


@pytest.mark.slow
def test_a_softcap_bends_scores_before_the_mask(any_gpu, check, rng):
    operands, mask = heads(rng), hidden(rng, 5, 9)
    check(any_gpu, attended(operands, mask=mask, softcap=2.0, scale=3.0), limit=LIMIT)


def test_huge_scores_do_not_overflow(any_gpu, check, rng):
    q, k, v = heads(rng)
    check(any_gpu, attended((q * 300, k * 300, v)), limit=LIMIT)


def test_nan_in_a_key_reaches_only_those_who_see_it(any_gpu, rng):
    q, k, v = heads(rng, tokens=9, keys=9, k_cols=33, v_cols=33)
    k[:, 6] = np.nan
    with Context(any_gpu) as ctx:
        got = attended((q, k, v), mask_mode="causal")(ctx).numpy()
    assert np.isfinite(got[:, :6]).all()
    assert np.isnan(got[:, 6:]).all()


@pytest.mark.parametrize(("cols", "dtype"), [(32, F32), (33, F16), (32, BF16)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_may_be_views_of_every_type(gpu, check, rng, layout, cols, dtype):
    operands = heads(rng, batch=2, k_cols=cols, v_cols=cols)

    def build(ctx):
        q, k, v = (LAYOUTS[layout](ctx, o, dtype) for o in operands)
        return q.scaled_dot_product_attention(k, v, scale=0.2)

    check(gpu, build, limit=LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [Q8_0, Q4_0], ids=str)
def test_keys_and_values_may_be_blocks(any_gpu, check, rng, dtype):
    q = rng.standard_normal((1, 5, 4, 64), "f4")
    data = [weight_bytes(rng, 9 * 2, 64, dtype) for _ in "kv"]

    def build(ctx):
        spec = Spec.dense((1, 9, 2, 64), dtype)
        k, v = (leaf(spec, ctx._executor.weight(spec, memoryview(d), "kv"), ctx) for d in data)
        return tensor(ctx, q).scaled_dot_product_attention(k, v, scale=0.125)

    check(any_gpu, build, limit=LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [F32, Q8_0], ids=str)
def test_latent_values_are_projected_up_by_head(any_gpu, check, rng, dtype):
    q, k, v = heads(rng, batch=2, kv_heads=1, k_cols=72, v_cols=64)
    data = weight_bytes(rng, 4 * 24, 64, dtype)

    def build(ctx):
        spec = Spec.dense((4, 24, 64), dtype)
        vmla = leaf(spec, ctx._executor.weight(spec, memoryview(data), "vmla"))
        return tensor(ctx, q).scaled_dot_product_attention(
            tensor(ctx, k), tensor(ctx, v), vmla=vmla, scale=0.1, mask_mode="causal"
        )

    check(any_gpu, build, limit=LIMIT)


def test_vmla_is_a_matrix_for_each_head(full, rng):
    operands, vmla = heads(rng), rng.standard_normal((4, 7, 32), "f4")
    with Context(full) as ctx:
        plain = attended(operands)(ctx).numpy()
        got = attended(operands, vmla=vmla)(ctx).numpy()
    np.testing.assert_allclose(got, np.einsum("bthd,hmd->bthm", plain, vmla), atol=1e-5)


def test_heads_may_come_before_tokens(gpu, check, rng):
    operands = [o.swapaxes(1, 2).copy() for o in heads(rng, batch=2)]
    build = attended(operands, heads_first=True, mask_mode="causal")
    check(gpu, build, limit=LIMIT)
    with Context(gpu) as ctx:
        got = build(ctx).numpy()
        other = attended([o.swapaxes(1, 2) for o in operands], mask_mode="causal")(ctx).numpy()
    assert got.shape == (2, 4, 5, 32)
    np.testing.assert_array_equal(got.swapaxes(1, 2), other)


@pytest.mark.parametrize("heads_first", [False, True])
def test_the_batch_axis_may_be_missing(gpu, check, rng, heads_first):
    operands = [o[0].swapaxes(0, 1) if heads_first else o[0] for o in heads(rng)]
    check(gpu, attended(operands, heads_first=heads_first), limit=LIMIT)


def test_mask_modes_and_masks_must_agree(full):
    with Context(full) as ctx:
        q, mask = ctx.zeros(1, 5, 4, 8), ctx.zeros(5, 5)
        with pytest.raises(ShapeError, match="mask_mode is 'array', needs a mask"):
            q.scaled_dot_product_attention(q, q, scale=1, mask_mode="array")
        with pytest.raises(ShapeError, match="mask_mode is 'none', needs no mask"):
            q.scaled_dot_product_attention(q, q, mask, scale=1, mask_mode="none")
        with pytest.raises(DTypeError, match="mask_mode is 'sliding', needs one of"):
            q.scaled_dot_product_attention(q, q, scale=1, mask_mode="sliding")


def test_what_does_not_fit_is_refused(full):
    with Context(full) as ctx:
        q = ctx.zeros(1, 5, 4, 8)
        for k, v, message in [
            ((1, 9, 2, 6), (1, 9, 2, 8), "a query has 8 values, a key has 6"),
            ((1, 9, 2, 8), (1, 7, 2, 8), "needs one batch, and as many values as keys"),
            ((1, 9, 3, 8), (1, 9, 3, 8), "4 query heads, not a multiple of 3 key heads"),
            ((9, 2, 8), (1, 9, 2, 8), "3 axes, needs 4 to 4"),
            ((1, 9, 2, 8), (1, 9, 2, 2049), "a value has 2049 values, needs 1 to 2048"),
        ]:
            with pytest.raises(ShapeError, match=message):
                q.scaled_dot_product_attention(ctx.zeros(*k), ctx.zeros(*v), scale=1)
        with pytest.raises(ShapeError, match=r"mask is \(5, 4\), needs what broadcasts to"):
            q.scaled_dot_product_attention(q, q, ctx.zeros(5, 4), scale=1)
        with pytest.raises(ShapeError, match=r"sinks is \(3,\), needs one for each of 4 heads"):
            q.scaled_dot_product_attention(q, q, sinks=ctx.zeros(3), scale=1)
        with pytest.raises(ShapeError, match="vmla is for 3 heads, query has 4"):
            q.scaled_dot_product_attention(q, q, vmla=ctx.zeros(3, 5, 8), scale=1)
