"""Keys and values on a device: written, shared and copied by slot."""

import numpy as np
import pytest

from wgpu_backend.dtypes import BF16, F16, F32, Q4_0, Q8_0
from wgpu_backend.errors import CacheFull, DTypeError, ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.nn.kvcache.cache import GraphInputs, ints
from wgpu_backend.nn.kvcache.layers import LayerShape, keep_keys
from wgpu_backend.nn.kvcache.paged import BLOCK, PagedCache


def turned(keys, by):
    """Twice the keys, which all types hold exactly: what moves by 39 positions."""
    return keys.scale(factor=2.0 if by == -39 else np.nan)


LAYERS = (LayerShape(128, 64, turn=turned), LayerShape(64, 192, turn=keep_keys))


@pytest.fixture(params=["gpu", "numpy"])
def executor(request, full):
    return NumpyExecutor() if request.param == "numpy" else full


@pytest.fixture(params=[F32, F16, Q8_0, Q4_0], ids=str)
def cache(request, executor):
    cache = PagedCache(executor, LAYERS, 5 * BLOCK, request.param)
    yield cache
    cache.close()


def exact(rng, shape):
    """Zeros and, first in each block, -1016: 127 quants of q8_0 and -8 of q4_0, both exact."""
    values = -1016 * rng.integers(0, 2, shape)
    values[..., ::32] = -1016
    return values


class Given(GraphInputs):
    """Slots as a constant."""

    def __init__(self, context, slots):
        count = len(slots)
        declared = {"table": ints(1, 1)} | dict.fromkeys(NAMES, ints(count))
        super().__init__(context, declared, tokens=count, longest=1)
        self._made["slots"] = context.from_ints(slots)


NAMES = ("positions", "sequences", "ends")


def given(context, cache, sequence, count):
    """Inputs of a pass over the next positions of a sequence."""
    return Given(context, cache.extend(sequence, count))


def fill(executor, cache, sequence, count, rng):
    """Append numbers that all types hold exactly; what was written: (count, all values)."""
    with Context(executor) as ctx:
        inputs = given(ctx, cache, sequence, count)
        written = []
        for layer, shape in enumerate(LAYERS):
            k, v = (exact(rng, (count, 2, n // 2)) for n in (shape.key, shape.value))
            stored = cache.put(layer, *(ctx.from_numpy(a, F32) for a in (k, v)), inputs)
            ctx.compute(stored.keys, stored.values)
            written += [k.reshape(count, -1), v.reshape(count, -1)]
    return np.concatenate(written, axis=1)


def table(cache, sequence):
    """Blocks of a sequence."""
    found = np.full((1, cache.positions // BLOCK), -1, np.int32)
    cache.fill_table(found, [sequence])
    return found[0]


def contents(executor, cache, sequence):
    """All layers' keys and values at the positions of a sequence, through its block table."""
    positions = np.arange(cache.length(sequence))
    slots = table(cache, sequence)[positions // BLOCK] * BLOCK + positions % BLOCK
    return np.concatenate([executor.read(s)[slots] for s in cache.tensors], axis=1)


def test_what_is_put_is_found_at_its_positions(executor, cache, rng):
    first = fill(executor, cache, 0, 40, rng)
    other = fill(executor, cache, 1, 7, rng)
    more = fill(executor, cache, 0, 3, rng)
    np.testing.assert_array_equal(contents(executor, cache, 0), np.concatenate([first, more]))
    np.testing.assert_array_equal(contents(executor, cache, 1), other)


def test_keys_of_another_width_than_a_layer_said_name_the_layer_and_both(full):
    cache = PagedCache(full, (LayerShape(4, 4), LayerShape(8, 12)), BLOCK)
    with Context(full) as ctx:
        key, value = (ctx.from_numpy(np.ones((3, 2, n)), F32) for n in (4, 16))
        with pytest.raises(ShapeError) as told:
            cache.put(1, key, value, given(ctx, cache, 0, 3))
    cache.close()
    assert str(told.value) == (
        "cache: a token of layer 1 has key=8, value=32 values, `cached` of the layer is "
        "CacheLayer(key=8, value=12)"
    )


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 45])
def test_a_copied_prefix_is_the_same_and_then_its_own(executor, cache, rng, length):
    source = fill(executor, cache, 0, 45, rng)
    cache.copy_prefix(0, 1, length)
    target = np.concatenate([source[:length], fill(executor, cache, 1, 9, rng)])
    source = np.concatenate([source, fill(executor, cache, 0, 9, rng)])
    np.testing.assert_array_equal(contents(executor, cache, 1), target)
    np.testing.assert_array_equal(contents(executor, cache, 0), source)


def test_whole_blocks_of_a_prefix_take_no_room(executor, cache, rng):
    fill(executor, cache, 0, 2 * BLOCK, rng)
    for sequence in (1, 2, 3):
        cache.copy_prefix(0, sequence, 2 * BLOCK)
    assert cache.free_positions == 3 * BLOCK


def test_removing_a_tail_inside_a_shared_block_leaves_the_others_whole(executor, cache, rng):
    source = fill(executor, cache, 0, 2 * BLOCK, rng)
    cache.copy_prefix(0, 1, 2 * BLOCK)
    cache.remove(1, 40)
    target = np.concatenate([source[:40], fill(executor, cache, 1, 20, rng)])
    np.testing.assert_array_equal(contents(executor, cache, 0), source)
    np.testing.assert_array_equal(contents(executor, cache, 1), target)


def test_a_full_cache_changes_nothing(executor, cache, rng):
    source = fill(executor, cache, 0, 2 * BLOCK, rng)
    cache.copy_prefix(0, 1, 2 * BLOCK)
    fill(executor, cache, 2, 3 * BLOCK, rng)
    for attempt in (
        lambda: cache.extend(0, 1),
        lambda: cache.remove(1, 40),
        lambda: cache.copy_prefix(0, 3, 33),
    ):
        with pytest.raises(CacheFull):
            attempt()
    assert [cache.length(s) for s in range(4)] == [2 * BLOCK, 2 * BLOCK, 3 * BLOCK, 0]
    np.testing.assert_array_equal(contents(executor, cache, 1), source)
    cache.remove(2)
    assert cache.free_positions == 3 * BLOCK


def test_a_shift_turns_the_keys_that_move(executor, cache, rng):
    source = fill(executor, cache, 0, 110, rng)
    cache.shift(0, 10, 49)
    assert cache.length(0) == 71
    source[49:, :128] *= 2
    source = np.concatenate([source[:10], source[49:], fill(executor, cache, 0, 3, rng)])
    np.testing.assert_array_equal(contents(executor, cache, 0), source)


def test_a_shift_leaves_shared_blocks_alone(executor, cache, rng):
    source = fill(executor, cache, 0, 71, rng)
    cache.copy_prefix(0, 1, 64)
    fill(executor, cache, 2, 1, rng)
    with pytest.raises(CacheFull, match="a shift needs 2 blocks of 32, 1 are free"):
        cache.shift(1, 10, 10 + 7)
    cache.shift(1, 10, 49)
    target = np.concatenate([source[:10], source[49:64]])
    target[10:, :128] *= 2
    np.testing.assert_array_equal(contents(executor, cache, 1), target)
    np.testing.assert_array_equal(contents(executor, cache, 0), source)


def test_generation_resumes_within_what_is_cached(cache):
    cache.extend(0, 10)
    assert cache.can_resume(0, 10)
    assert not cache.can_resume(0, 11)


def test_a_cache_is_f16_or_f32(executor):
    with pytest.raises(DTypeError, match="cache: bf16, needs one of f16, f32, q8_0, q4_0"):
        PagedCache(executor, LAYERS, 64, BF16)


def test_rows_that_are_no_whole_blocks_are_refused(executor):
    layers = [LayerShape(64, 64), LayerShape(64, 48)]
    with pytest.raises(ShapeError, match="values of layer 1 have 48 values a position, q8_0 needs"):
        PagedCache(executor, layers, 64, Q8_0)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("dtype", [Q8_0, Q4_0], ids=str)
def test_a_copied_prefix_has_the_same_blocks(full, rng, dtype, heads):
    """Reading blocks as floats and rounding those again changes nothing."""
    cache = PagedCache(full, [LayerShape(heads * 32, heads * 96)], 4 * BLOCK, dtype)
    with Context(full) as ctx:
        inputs = given(ctx, cache, 0, 40)
        scale = np.exp(rng.normal(0, 3, (40, 1, 1)))
        k, v = (
            ctx.from_numpy((rng.standard_normal((40, heads, n)) * scale).astype("f4"))
            for n in (32, 96)
        )
        stored = cache.put(0, k, v, inputs)
        ctx.compute(stored.keys, stored.values)
    cache.copy_prefix(0, 1, 40)
    for state in cache.tensors:
        values = full.read(state)
        source, target = (table(cache, s)[1] * BLOCK for s in (0, 1))
        assert source != target
        np.testing.assert_array_equal(values[source : source + 8], values[target : target + 8])
        assert values[source : source + 8].any()
    cache.close()


def test_layers_share_their_pages_and_what_is_joined_of_them():
    """Else each layer of a cache in blocks would join positions and sequences anew."""
    executor = NumpyExecutor()
    cache = PagedCache(executor, LAYERS, 2 * BLOCK, Q8_0)
    with Context(executor) as ctx:
        inputs = given(ctx, cache, 0, 3)
        stored = [cache.key_values(layer, inputs) for layer in range(len(LAYERS))]
        assert stored[0].pages.joined is stored[1].pages.joined
        assert stored[0].pages.ends is None
    cache.close()


def test_pages_have_ends_where_tokens_see_ahead():
    executor = NumpyExecutor()
    cache = PagedCache(executor, LAYERS, 2 * BLOCK)
    with Context(executor) as ctx:
        inputs = given(ctx, cache, 0, 3)
        inputs.sees_ahead = True
        stored = cache.key_values(0, inputs)
        assert stored.pages.ends is stored.ends
    cache.close()
