"""Pictures that tokens attend to: where sequences resume, what they share, what is dropped."""

import numpy as np
import pytest

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import CacheFull, ContextError
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.nn.kvcache.encoded import ENDS, TABLE
from wgpu_backend.nn.kvcache.factory import make_cache
from wgpu_backend.nn.kvcache.layers import EncodedShape, LayerShape
from wgpu_backend.nn.kvcache.paged import BLOCK

LAYERS = [LayerShape(4, 4), EncodedShape(4, 4, 40)]


@pytest.fixture
def cache():
    made = make_cache(NumpyExecutor(), LAYERS, 6, 10 * BLOCK, F32)
    yield made
    made.close()


def step(cache, *parts):
    """Take positions of sequences, (sequence, tokens, rows of a picture), and return the ends."""
    pictures = cache.parts[-1]
    for sequence, _, rows in parts:
        if rows:
            pictures.announce(sequence, cache.length(sequence), rows)
    tokens = sum(count for _, count, _ in parts)
    specs = cache.input_specs(tokens, len(parts), 10 * BLOCK)
    arrays = {name: np.zeros(shape, np.int32) for name, (shape, _) in specs.items()}
    try:
        cache.fill(arrays, [(sequence, count) for sequence, count, _ in parts])
    finally:
        pictures.forget_announced()
    return arrays[ENDS].tolist(), arrays[TABLE]


def test_tokens_see_the_last_picture_and_those_directly_before(cache):
    assert step(cache, (0, 3, 0))[0] == [-1] * 3
    assert step(cache, (0, 2, 17), (1, 2, 0))[0] == [16, 16, -1, -1]
    # One token of text was between them.
    assert step(cache, (0, 1, 40))[0] == [39]
    assert step(cache, (0, 2, 5))[0] == [44, 44]
    assert step(cache, (0, 1, 0), (1, 1, 8))[0] == [44, 7]


def test_a_sequence_resumes_after_its_last_pictures_or_before_its_first(cache):
    for part in ((0, 3, 0), (0, 2, 17), (0, 1, 40), (0, 3, 5)):
        step(cache, part)
    # Pictures at 3, 5 and 6: that at 3 is gone.
    points = [cache.resume_point(0, position) for position in range(10)]
    assert points == [0, 1, 2, 3, 3, 3, 6, 7, 8, 9]
    assert cache.remove(0, 6) == 6
    assert step(cache, (0, 1, 0))[0] == [39]
    assert cache.remove(0, 5) == 3
    assert step(cache, (0, 1, 0))[0] == [-1]
    assert cache.remove(0, 0) == 0
    assert len(cache.parts[-1].free_list()) == 3 * 2


def test_a_shared_prefix_has_its_pictures(cache):
    for part in ((0, 3, 0), (0, 2, 17), (0, 3, 0)):
        step(cache, part)
    pictures = cache.parts[-1]
    states = pictures._get_states(1)["key"]
    slots = pictures.newest_slots(0)
    rows = np.random.default_rng(1).standard_normal((17, 4)).astype(np.float32)
    with Context(NumpyExecutor()) as context:
        context.compute(states.set_rows(context.from_numpy(rows), context.from_ints(slots)))
    assert cache.copy_prefix(0, 1, 6) == 6
    assert step(cache, (1, 1, 0))[0] == [16]
    assert cache.copy_prefix(0, 2, 3) == 3
    assert step(cache, (2, 1, 0))[0] == [-1]
    cache.remove(0)
    with Context(NumpyExecutor()) as context:
        found = states.rows(context.from_ints(pictures.newest_slots(1))).numpy()
    assert np.array_equal(found, rows)


def test_a_full_cache_changes_nothing(cache):
    step(cache, (0, 2, 40))
    step(cache, (1, 2, 40))
    # Six blocks in all, of which two are left: a longer picture replaces two of its own.
    assert step(cache, (0, 1, 0))[0] == [39]
    before = [cache.length(0), cache.resume_point(0, 3)]
    with pytest.raises(CacheFull, match="1 blocks of 32 for pictures"):
        step(cache, (0, 1, 5 * BLOCK - 1))
    assert [cache.length(0), cache.resume_point(0, 3)] == before
    assert step(cache, (0, 1, 0))[0] == [39]
    assert step(cache, (0, 1, 4 * BLOCK))[0] == [4 * BLOCK - 1]


def test_pictures_are_saved_with_their_places(cache):
    for part in ((0, 1, 0), (0, 2, 17), (0, 1, 20), (0, 2, 5)):
        step(cache, part)
    saved = cache.save(0)
    cache.remove(0)
    cache.restore(1, saved)
    assert [cache.resume_point(1, position) for position in range(7)] == [0, 1, 1, 1, 4, 5, 6]
    assert step(cache, (1, 1, 0))[0] == [24]
    assert not cache.can_shift(1, 0, 1)
    part = saved[-1]
    wrong = type(part)(part.length, part.runs, [*part.rows[:-1], part.rows[-1][:1]])
    with pytest.raises(ContextError, match="positions of shape"):
        cache.require_saved([*saved[:-1], wrong])
