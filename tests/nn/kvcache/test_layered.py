"""Caches of several kinds of layers: what they take, and where they go on from."""

import numpy as np
import pytest

from wgpu_backend.dtypes import F16, F32, Q8_0
from wgpu_backend.errors import CacheFull, ContextError, DTypeError, ModelError, ShapeError
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.nn.batch import BatchArrays, BatchShape, Work, all_input_specs
from wgpu_backend.nn.kvcache.factory import make_cache, state_rows
from wgpu_backend.nn.kvcache.layered import LayeredCache
from wgpu_backend.nn.kvcache.layers import LayerShape, SharedLayer, StateShape, keep_keys
from wgpu_backend.nn.kvcache.paged import BLOCK, PagedCache
from wgpu_backend.nn.kvcache.recurrent import Checkpoints

ALL, NEAR = LayerShape(64, 64), LayerShape(64, 64, window=512)
SHORT = LayerShape(64, 64, window=128)
STATE = StateShape(conv=(16, 3), ssm=(16, 8))
EXECUTOR = NumpyExecutor()


def made(*layers, positions=4096, sequences=1, dtype=F16, checkpoints=None):
    return make_cache(EXECUTOR, layers, sequences, positions, dtype, checkpoints)


def passes(cache, *counts, sequence=0):
    """Passes of so many tokens; shapes of the inputs of the last."""
    for count in counts:
        most = cache.length(sequence) + count
        shape = BatchShape(count, count, 1, cache.reach(most, count))
        declared = all_input_specs(shape, cache, {})
        arrays = {
            name: np.zeros(extents, dtype.numpy) for name, (extents, dtype) in declared.items()
        }
        BatchArrays(shape, arrays, cache, {}).fill([Work(sequence, [1] * count)])
    return arrays


def nbytes(cache):
    parts = cache.parts if isinstance(cache, LayeredCache) else [cache]
    return [sum(t.spec.nbytes for t in part.tensors) for part in parts]


def read_again(cache, length, chunk=256):
    """Most tokens that are read again to go on from any position of a sequence."""
    passes(cache, *[chunk] * (length // chunk), *[1] * (length % chunk))
    return max(at - cache.resume_point(0, at) for at in range(length + 1))


def test_layers_that_keep_everything_need_no_checkpoints():
    assert isinstance(made(ALL, SharedLayer(0), None), PagedCache)


@pytest.mark.parametrize(("megabytes", "rows"), [(1, 28), (16, 28), (32, 16), (80, 8), (1000, 8)])
def test_large_states_have_few_rows(megabytes, rows):
    halves = {layer: StateShape(ssm=(megabytes, 1 << 17)) for layer in (0, 5)}
    assert state_rows(halves, sequences=4) == rows


def test_the_fewest_rows_serve_as_many_sequences_in_turn():
    big = StateShape(ssm=(32, 1 << 20))  # 128 MiB, which are not allocated before they are written
    cache = made(big, big, sequences=3, positions=1024)
    for _ in range(3):
        for sequence in range(3):
            passes(cache, 7, 1, 1, 1, 1, sequence=sequence)
            assert cache.can_resume(sequence, cache.length(sequence) - 3)
    assert [cache.length(sequence) for sequence in range(3)] == [33, 33, 33]
    cache.close()


def test_the_memory_of_a_window_does_not_grow_with_the_context():
    sizes = [nbytes(made(NEAR, ALL, positions=n)) for n in (1 << 14, 1 << 15, 1 << 16)]
    (window, *_), (same, *_), (again, *_) = sizes
    assert window == same == again
    assert [whole for _, whole in sizes] == [(1 << n) * 2 * 64 * 2 for n in (14, 15, 16)]


def test_the_memory_of_states_does_not_grow_with_the_context():
    assert nbytes(made(STATE)) == nbytes(made(STATE, positions=1 << 20))


def test_the_block_table_of_a_window_stops_growing():
    cache = made(NEAR, positions=1 << 15)
    widths = [passes(cache, *[256] * n)["0.table"].shape[1] for n in (1, 3, 4, 40, 70)]
    assert widths == [8, 25, 25, 25, 25]  # 511 before, 31 that fill a block, 256 of the pass
    assert passes(cache, 1)["0.table"].shape[1] == 17


def test_a_window_shorter_than_the_context_saves_what_it_says():
    few, all_of_them = (nbytes(made(shape, positions=1 << 15))[0] for shape in (NEAR, ALL))
    assert few < all_of_them / 5


@pytest.mark.parametrize("layers", [[SHORT], [STATE], [SHORT, ALL], [STATE, ALL, NEAR]])
@pytest.mark.parametrize("length", [4096, 3700])
def test_at_most_an_interval_is_read_again(layers, length):
    cache = made(*layers)
    assert cache.checkpoints.interval == 512
    assert 0 < read_again(cache, length) <= 512


def test_keys_that_are_all_there_are_never_read_again():
    assert read_again(made(ALL), 2048) == 0


def test_the_end_of_a_stream_costs_nothing_to_go_on_from():
    """Steps that were under way when it ended are taken back."""
    cache = made(STATE, NEAR, ALL)
    passes(cache, 256, 256, *[1] * 700)
    assert cache.remove(0, 1209) == 1209
    assert cache.length(0) == 1209


def test_values_that_are_columns_of_keys_take_no_room():
    assert nbytes(made(LayerShape(576, None), positions=1024)) == [1024 * 576 * 2]


def test_layers_that_share_keys_take_no_room():
    assert nbytes(made(NEAR, ALL)) == nbytes(made(NEAR, ALL, SharedLayer(1), SharedLayer(0)))


def test_a_shared_prefix_of_states_takes_no_room():
    cache = made(STATE, sequences=2)
    passes(cache, 256, 256)
    free = len(cache.parts[0].free_list())
    assert cache.copy_prefix(0, 1, 300) == 256
    assert len(cache.parts[0].free_list()) == free


def test_a_cache_without_room_says_what_is_missing():
    cache = made(NEAR, sequences=1, positions=64, dtype=F32)
    with pytest.raises(CacheFull, match="65 more positions need 1 blocks of 32 more than the free"):
        passes(cache, 65)
    assert cache.length(0) == 0


def test_checkpoints_go_before_a_pass_is_refused():
    cache = made(STATE, sequences=1, positions=1 << 20, checkpoints=Checkpoints(256, 1))
    passes(cache, *[256] * 40)
    assert cache.length(0) == 40 * 256
    assert cache.resume_point(0, 5000) > 0


def test_checkpoints_of_others_go_before_a_shift_is_refused():
    cache = made(LayerShape(64, 64, window=128, turn=keep_keys))
    passes(cache, 256, 44)
    other = 0
    while cache.free_positions:
        other += 1
        passes(cache, *[32] * min(16, cache.free_positions // BLOCK), sequence=other)
    kept = [list(cache.checkpoints.list_ends(n)) for n in range(1, other + 1)]
    cache.shift(0, 10, 50)  # what is in sight moves over the border of a block: one more
    assert cache.length(0) == 260
    assert [list(cache.checkpoints.list_ends(n)) for n in range(1, other + 1)] != kept


@pytest.mark.parametrize("ends", [[300], [150, 90, 60], [20] * 15])
def test_whether_a_window_shifts_does_not_hang_on_its_checkpoints(ends):
    """Others may need their room: what is decided by them would be another text than alone."""
    cache = made(LayerShape(64, 64, window=128, turn=keep_keys))
    passes(cache, *ends)
    assert cache.can_shift(0, 10, 50)
    assert not cache.can_shift(0, 172, 236)


def test_layers_of_a_wrong_kind_are_told_apart():
    cache = made(STATE, ALL, None)
    with pytest.raises(ContextError, match="layer 1 has no state 'ssm'"):
        cache.state(1, "ssm", None)
    with pytest.raises(ContextError, match="layer 0 has no state 'kv', it has conv, ssm"):
        cache.state(0, "kv", None)
    with pytest.raises(ContextError, match=r"layer 2 stores no keys; \[1\] do"):
        cache.key_values(2, None)
    with pytest.raises(ModelError, match=r"layer 1 shares keys of layer 0, which has none; \[2\]"):
        made(STATE, SharedLayer(0), ALL)


def test_types_are_refused_before_anything_is_allocated():
    before = EXECUTOR.memory_report()
    with pytest.raises(ShapeError, match="keys of layer 1 have 48 values a position, q8_0 needs"):
        made(ALL, LayerShape(48, 64, window=8), dtype=Q8_0)
    with pytest.raises(DTypeError, match="cache: "):
        made(STATE, NEAR, dtype=type(F16)("other", 1, 2, 99, None))
    assert EXECUTOR.memory_report() == before


def test_blocks_are_as_many_as_one_sequence_and_its_checkpoints_need():
    cache = made(NEAR, positions=1 << 15)
    passes(cache, *[256] * 100)
    held = nbytes(cache)[0] // (64 * 2 * 2) // BLOCK - len(cache.parts[0].free_list())
    assert held <= (512 + 256) // BLOCK + 2 + 8 * (512 // BLOCK + 1)
