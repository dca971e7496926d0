"""Several sequences in one model: batched, sharing prefixes, taken back, and out of room."""

import numpy as np
import pytest

from tests.builders import tiny_model
from tests.models.running import running
from wgpu_backend.engine.runner import Work
from wgpu_backend.errors import CacheFull
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.testing import nmse

LIMIT = 1e-10  # sums in another order, as in test_logits
POSITIONS = 256


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(1).integers(0, 256, 240).tolist()


@pytest.fixture(scope="module", params=["full", "baseline", "numpy"])
def model(request, executors, tmp_path_factory):
    path = tiny_model(tmp_path_factory.mktemp("model") / "model.gguf", "qwen3", "q4_0")
    executor = NumpyExecutor() if request.param == "numpy" else executors(request.param)
    with running(path, executor, POSITIONS) as model:
        yield model


@pytest.fixture(autouse=True)
def empty(model):
    """No test finds the sequences of another."""
    yield
    for sequence in range(10):
        model.cache.remove(sequence)
    assert model.cache.free_positions == POSITIONS


def assert_same(got, want):
    assert got.shape == want.shape
    assert nmse(got, want) <= LIMIT


def test_sequences_of_one_batch_do_not_see_each_other(model, tokens):
    parts = {1: tokens[:1], 2: tokens[3:8], 5: tokens[10:43], 9: tokens[20:60]}
    together = model.batch(parts)
    for got, part in zip(together, parts.values(), strict=True):
        assert_same(got, model.anew(part))


def test_sequences_of_many_lengths_go_on_together(model, tokens):
    starts = {1: 3, 2: 31, 3: 32, 4: 20}
    for sequence, length in starts.items():
        model.ask(tokens[:length], sequence=sequence)
    for step in range(3):
        got = model.batch({s: tokens[n + step : n + step + 1] for s, n in starts.items()})
        for row, (sequence, length) in zip(got, starts.items(), strict=True):
            assert model.cache.length(sequence) == length + step + 1
            assert_same(row, model.anew(tokens[: length + step + 1])[-1:])


# Wanted tokens of each sequence, and how many it has.
WANTED = {
    "all": {1: (range(4), 4)},
    "all, padded": {1: (range(5), 5)},
    "a step each, padded": {1: ((0,), 1), 2: ((0,), 1), 5: ((0,), 1)},
    "all of several": {1: (range(3), 3), 2: (range(2), 2)},
    "most": {1: ((1, 2, 3), 4)},
    "as many, of one": {1: (range(3), 3), 2: ((), 1)},
    "backwards": {1: ((3, 2, 1, 0), 4)},
    "twice": {1: ((0, 2, 2, 1), 3)},
    "the last": {1: ((5,), 6), 2: ((0,), 1)},
}


@pytest.mark.parametrize("works", WANTED.values(), ids=WANTED)
def test_results_are_those_of_the_wanted_tokens_in_their_order(model, tokens, works):
    parts = {s: (wanted, tokens[9 * s : 9 * s + n]) for s, (wanted, n) in works.items()}
    given = [Work(s, part, wanted) for s, (wanted, part) in parts.items()]
    rows = model.runner.run(given, model.head, {}).wait()[0]
    want = [model.anew(part)[list(wanted)] for wanted, part in parts.values() if wanted]
    want = np.concatenate(want)
    assert_same(rows[: len(want)], want)
    assert np.isfinite(rows).all()


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 40, 64])
def test_a_copied_prefix_is_as_good_as_its_own(model, tokens, length):
    whole = model.ask(tokens[:70])
    model.cache.copy_prefix(0, 1, length)
    assert_same(model.ask(tokens[length:70], sequence=1), whole[length:])


def test_what_one_sequence_writes_the_other_does_not_read(model, tokens):
    model.ask(tokens[:40])
    model.cache.copy_prefix(0, 1, 36)
    other = model.ask(tokens[100:110], sequence=1)
    after = model.ask(tokens[40:50])
    assert_same(after, model.anew(tokens[:50])[40:])
    assert_same(other, model.anew(tokens[:36] + tokens[100:110])[36:])


@pytest.mark.parametrize("length", [1, 31, 32, 33, 63])
def test_a_tail_taken_back_leaves_no_trace(model, tokens, length):
    model.ask(tokens[:64])
    model.cache.remove(0, length)
    again = model.ask(tokens[80:100])
    assert_same(again, model.anew(tokens[:length] + tokens[80:100])[length:])


def test_a_tail_taken_back_inside_a_shared_block_stays_with_the_other(model, tokens):
    whole = model.ask(tokens[:70])
    model.cache.copy_prefix(0, 1, 64)
    model.cache.remove(0, 40)
    changed = model.ask(tokens[90:100])
    assert_same(model.ask(tokens[64:70], sequence=1), whole[64:])
    assert_same(changed, model.anew(tokens[:40] + tokens[90:100])[40:])


def test_a_full_cache_says_so_and_goes_on(model, tokens):
    model.ask(tokens[:100], sequence=1)  # 4 blocks of 8
    model.ask(tokens[:60], sequence=2)  # 2
    before = model.ask(tokens[:64])  # 2
    with pytest.raises(CacheFull, match="1 more positions need 1 blocks of 32, 0 are free"):
        model.ask(tokens[64:65])
    with pytest.raises(CacheFull, match="0 of 8 are free"):
        model.cache.copy_prefix(0, 3, 40)
    assert [model.cache.length(s) for s in range(4)] == [64, 100, 60, 0]
    model.cache.remove(2)
    after = model.ask(tokens[64:70])
    assert_same(np.concatenate([before, after]), model.anew(tokens[:70]))


def test_a_pass_that_does_not_fit_changes_no_sequence(model, tokens):
    model.ask(tokens[:31], sequence=1)
    before = model.ask(tokens[:224])  # 1 of 8 blocks and then 7: all are held
    works = [Work(1, tokens[31:32], (0,)), Work(0, tokens[224:225], (0,))]
    with pytest.raises(CacheFull, match="0 are free"):
        model.runner.run(works, model.head, {})
    assert [model.cache.length(s) for s in range(2)] == [224, 31]
    model.cache.remove(1)
    after = model.ask(tokens[224:230])
    assert_same(np.concatenate([before, after]), model.anew(tokens[:230]))
