"""Attention of a batch: what a layer stored, or another one did, and what its options become."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.nn.kvcache.test_paged import given
from wgpu_backend import nn
from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.nn.kvcache.layers import LayerShape, SharedLayer
from wgpu_backend.nn.kvcache.paged import BLOCK, PagedCache

TOKENS, HEADS, COLS = 5, 4, 12


@pytest.fixture
def made(request):
    """Batch of a text of five tokens over a cache of some layers; causal unless told otherwise."""
    layers, sees_ahead = getattr(request, "param", (LAYERS, False))
    executor = NumpyExecutor()
    cache = PagedCache(executor, layers, BLOCK, F32)
    with Context(executor) as ctx:
        inputs = given(ctx, cache, 0, TOKENS)
        inputs.sees_ahead, inputs.longest = sees_ahead, TOKENS
        values = {
            "positions": range(TOKENS),
            "sequences": [0] * TOKENS,
            "ends": [TOKENS - 1] * TOKENS,
        }
        inputs._made |= {n: ctx.from_ints(list(v)) for n, v in values.items()}
        inputs._made["table"] = ctx.from_ints([0], 1, 1)
        yield SimpleNamespace(
            context=ctx,
            put=lambda layer, k, v: cache.put(layer, k, v, inputs),
            key_values=lambda layer: cache.key_values(layer, inputs),
            attended={},
        )
    cache.close()


LAYERS = (LayerShape(COLS * 2, 8 * 2), SharedLayer(0))
IN_KEYS = (LayerShape(COLS, None),)


def tensors(made, rng, kv_heads=2, v_cols=8):
    shapes = (HEADS, COLS), (kv_heads, COLS), (kv_heads, v_cols)
    arrays = [rng.standard_normal((TOKENS, *shape), "f4") for shape in shapes]
    return arrays, [made.context.from_numpy(a) for a in arrays]


def formula(q, k, v, seen, added=0.0):
    """Softmax over what is seen, heads after heads."""
    k, v = (np.repeat(x, HEADS // x.shape[1], axis=1) for x in (k, v))
    scores = np.where(seen, np.einsum("thd,nhd->htn", q, k) * 0.3 + added, -np.inf)
    e = np.exp(scores - scores.max(axis=2, keepdims=True))
    e /= e.sum(axis=2, keepdims=True)
    return np.einsum("htn,nhd->thd", e, v).reshape(TOKENS, -1)


PAST = np.tri(TOKENS, dtype=bool)


def test_a_layer_may_read_what_another_stored(made, rng):
    (q, k, v), (tq, tk, tv) = tensors(made, rng)
    nn.attend(0, tq, tk, tv, made, scale=0.3).numpy()
    got = nn.attend(1, tq, None, None, made, scale=0.3).numpy()
    np.testing.assert_allclose(got, formula(q, k, v, PAST), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("made", [(IN_KEYS, False)], indirect=True)
def test_values_may_be_columns_of_keys(made, rng):
    (q, k, _), (tq, tk, _) = tensors(made, rng, kv_heads=1)
    got = nn.attend(0, tq, tk, None, made, scale=0.3, v_cols=8).numpy()
    np.testing.assert_allclose(got, formula(q, k, k[..., :8], PAST), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("made", [(LAYERS, True)], indirect=True)
def test_tokens_of_an_encoder_see_all_of_their_text(made, rng):
    (q, k, v), given = tensors(made, rng)
    got = nn.attend(0, *given, made, scale=0.3, causal=False, alibi=8.0).numpy()
    apart = np.abs(np.subtract.outer(np.arange(TOKENS), np.arange(TOKENS)))
    added = -(2.0 ** -np.arange(2, 10, 2))[:, None, None] * apart
    want = formula(q, k, v, np.ones_like(PAST), added)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{"window": 3}, {"chunk": 2}], ids=str)
def test_a_temperature_goes_by_positions_that_a_window_loses(made, rng, options):
    _, given = tensors(made, rng)
    heat = nn.Temperature(0.1, 4)
    with pytest.raises(ShapeError, match="multiply the queries by its factor instead"):
        nn.attend(0, *given, made, scale=0.3, temperature=heat, **options)
