"""Prefixes are found by their tokens, shared, and forgotten when room is short."""

import numpy as np
import pytest

from wgpu_backend.engine.batching import prefix_cache
from wgpu_backend.engine.batching.prefix_cache import PrefixCache
from wgpu_backend.errors import CacheFull
from wgpu_backend.ml.backend import BackendParams, make_executor
from wgpu_backend.nn.kvcache.factory import make_cache
from wgpu_backend.nn.kvcache.layers import LayerShape, StateShape
from wgpu_backend.nn.kvcache.paged import BLOCK

SHAPE = LayerShape(4, 4)


@pytest.fixture(scope="module")
def executor():
    return make_executor("cpu", BackendParams())


@pytest.fixture
def cache(executor):
    cache = make_cache(executor, [SHAPE], 4, 20 * BLOCK)
    yield cache
    cache.close()


def extend(cache, sequence, tokens):
    """Take room for tokens, as a pass does."""
    declared = cache.input_specs(tokens, 1, cache.positions)
    arrays = {name: np.zeros(shape, dtype.numpy) for name, (shape, dtype) in declared.items()}
    arrays |= {name: np.zeros(tokens, np.int32) for name in ("positions", "ends")}
    cache.fill(arrays, [(sequence, tokens)])


def answer(prefixes, cache, prompt, more=()):
    """A request from its begin to its end; how much of its prompt was there."""
    tokens = list(prompt)
    sequence, reused = prefixes.begin(tokens)
    assert reused == cache.length(sequence) < len(tokens)
    tokens += more
    while cache.length(sequence) < len(tokens):
        extend(cache, sequence, min(BLOCK, len(tokens) - cache.length(sequence)))
        prefixes.note(sequence, cache.length(sequence))
    prefixes.end(sequence, len(tokens))
    return reused


def test_a_conversation_goes_on_with_its_own_sequence(cache):
    prefixes = PrefixCache(cache)
    assert answer(prefixes, cache, range(50), range(50, 90)) == 0
    assert answer(prefixes, cache, range(100)) == 90
    assert prefixes.kept == (1, 100)


def test_a_prefix_whose_last_block_is_shared_and_no_other_free(executor):
    cache = make_cache(executor, [SHAPE], 4, 4 * BLOCK)
    prefixes, prompt = PrefixCache(cache), [*range(2 * BLOCK)]
    running, _ = prefixes.begin([*prompt, 900])
    for _ in range(2):
        extend(cache, running, BLOCK)
    prefixes.note(running, 2 * BLOCK)
    left, shared = prefixes.begin([*prompt, 901, 902])
    assert shared == 2 * BLOCK
    prefixes.end(left, shared)  # cancelled in front of its first pass
    for _ in range(2):
        extend(cache, running, BLOCK)
    assert cache.free_positions == 0
    again, length = prefixes.begin(prompt)
    assert length == BLOCK
    for each in (again, running):
        prefixes.forget(each)
    assert not prefixes.evict()
    assert cache.free_positions == cache.positions
    cache.close()


def test_prompts_that_begin_alike_share_whole_blocks(cache):
    prefixes = PrefixCache(cache)
    free = cache.free_positions
    answer(prefixes, cache, range(4 * BLOCK + 5), range(900, 990))
    used = free - cache.free_positions
    assert answer(prefixes, cache, [*range(4 * BLOCK + 5), 700, 701]) == 4 * BLOCK
    assert free - cache.free_positions == used + BLOCK
    assert prefixes.kept[0] == 2


def test_what_runs_is_shared_as_far_as_it_has_come(cache):
    prefixes = PrefixCache(cache)
    first, _ = prefixes.begin(list(range(200)))
    assert prefixes.begin(list(range(200)))[1] == 0
    extend(cache, first, 100)
    prefixes.note(first, 100)
    assert prefixes.begin(list(range(200)))[1] == 3 * BLOCK


def test_a_prompt_that_is_there_as_a_whole_computes_its_last_token_again(cache):
    prefixes = PrefixCache(cache)
    answer(prefixes, cache, range(64))
    assert answer(prefixes, cache, range(64)) == 63


def test_other_tokens_with_the_same_hashes_are_not_taken_for_ones_own(cache, monkeypatch):
    monkeypatch.setattr(prefix_cache, "hash", lambda _: 7, raising=False)
    prefixes = PrefixCache(cache)
    answer(prefixes, cache, range(200))
    assert answer(prefixes, cache, range(1, 201)) == 0
    assert answer(prefixes, cache, [*range(40), 999, *range(41, 120)]) == BLOCK


def test_the_one_used_longest_ago_goes_first(cache):
    prefixes = PrefixCache(cache)
    texts = [[n * 1000 + i for i in range(70)] for n in range(3)]
    for text in texts:
        answer(prefixes, cache, text)
    answer(prefixes, cache, texts[0])
    assert prefixes.evict()
    assert [prefixes.begin(list(text))[1] > 0 for text in texts] == [True, False, True]
    prefixes.clear()
    assert not prefixes.evict()


def test_all_room_comes_back(cache):
    prefixes = PrefixCache(cache)
    free = cache.free_positions
    for n in range(4):
        answer(prefixes, cache, range(n * 20 + 40), range(500, 520))
    running, _ = prefixes.begin(list(range(300)))
    prefixes.clear()
    prefixes.end(running, 0)
    assert cache.free_positions == free
    assert prefixes.kept == (0, 0)


def test_nothing_is_kept_or_found_where_it_is_not_wanted(cache):
    prefixes = PrefixCache(cache, enabled=False)
    free = cache.free_positions
    assert [answer(prefixes, cache, range(100)) for _ in range(2)] == [0, 0]
    assert cache.free_positions == free


def test_what_is_hidden_is_not_found(cache):
    prefixes = PrefixCache(cache)
    sequence, _ = prefixes.begin(list(range(100)))
    extend(cache, sequence, 100)
    prefixes.note(sequence, 100)
    prefixes.hide(sequence)
    prefixes.note(sequence, 100)
    assert prefixes.begin(list(range(100)))[1] == 0
    prefixes.end(sequence, 100)
    assert cache.length(sequence) == 0


@pytest.mark.parametrize(
    "layer",
    [LayerShape(4, 4, window=40), StateShape(state=(2, 2))],
    ids=["window", "state"],
)
def test_windows_and_states_go_on_from_a_checkpoint(executor, layer):
    cache = make_cache(executor, [SHAPE, layer], 6, 40 * BLOCK)
    prefixes = PrefixCache(cache)
    answer(prefixes, cache, range(100), range(500, 510))
    assert answer(prefixes, cache, [*range(100), *range(500, 520)]) == 110
    # The prompt ends otherwise: what was computed goes on from the end of a pass before.
    reused = answer(prefixes, cache, [*range(96), *range(800, 900)])
    assert 0 < reused <= 96
    assert reused % BLOCK == 0
    cache.close()


def test_a_copy_that_finds_no_room_is_read_again(executor, monkeypatch):
    cache = make_cache(executor, [SHAPE], 4, 20 * BLOCK)
    prefixes = PrefixCache(cache)
    answer(prefixes, cache, range(200))

    def full(*_):
        raise CacheFull("no room")

    monkeypatch.setattr(cache, "copy_prefix", full)
    assert prefixes.begin([*range(100), 7, 8])[1] == 0
    cache.close()
