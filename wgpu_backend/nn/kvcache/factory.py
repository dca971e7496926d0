"""Make the cache of a model's layers, with one part for each kind of layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from wgpu_backend.dtypes import F16, F32, DType
from wgpu_backend.errors import ModelError
from wgpu_backend.ml.executor import Executor
from wgpu_backend.nn.kvcache.cache import Cache
from wgpu_backend.nn.kvcache.encoded import EncodedCache
from wgpu_backend.nn.kvcache.layered import LayeredCache, Part
from wgpu_backend.nn.kvcache.layers import (
    LayerCache,
    LayerShape,
    SharedLayer,
    StateShape,
    encoded_layers,
    iterate_entries,
    paged_layers,
    require_type,
)
from wgpu_backend.nn.kvcache.paged import BLOCK, PagedCache, Sight, WindowedCache
from wgpu_backend.nn.kvcache.pictures import PicturesCache
from wgpu_backend.nn.kvcache.recurrent import Checkpoints, RecurrentCache

# Checkpoints that there is room for, over all sequences.
CHECKPOINTS = 8
# Passes that a stream may have started after the token that ends it.
REWIND = 3
# Bytes that states may take when there are more rows than necessary.
STATES_NBYTES = 512 << 20
# Typical tokens of a pass: checkpoints are chosen from the ends of passes.
PASS = 256


def make_cache(
    executor: Executor,
    layers: Sequence[LayerCache],
    sequences: int,
    positions: int,
    dtype: DType = F16,
    checkpoints: Checkpoints | None = None,
) -> Cache:
    """Make the cache that layers need.

    Parameters
    ----------
    sequences : int
        Sequences that may be long at the same time: windows and states have room for these.
    positions : int
        Total positions of all sequences.
    dtype : DType
        Type of keys and values.
    checkpoints : Checkpoints or None
        None for as many as fit in `positions`.

    Raises
    ------
    DTypeError, ShapeError
        Keys or values cannot have that type.
    ModelError
        A layer shares keys with one that has none.
    OutOfMemory
        The cache does not fit; nothing stays allocated.
    """
    encoded = encoded_layers(layers)
    require_type(dtype, paged_layers(layers))
    require_type(dtype, encoded)
    groups = _group_layers(layers)
    states = {i: kept for i, kept in iterate_entries(layers) if isinstance(kept, StateShape)}
    if not states and not encoded and not any(groups):
        return PagedCache(executor, layers, positions, dtype)
    if checkpoints is None:
        checkpoints = Checkpoints(max(2 * PASS, -(-positions // CHECKPOINTS)), REWIND)
    parts: dict[Part, Sequence[int]] = {}
    recurrent: Part | None = None
    texts: EncodedCache | None = None
    try:
        for number, (sight, members) in enumerate(groups.items()):
            own = [members.get(i) for i in range(len(layers))]
            if sight is None:
                part = PagedCache(executor, own, positions, dtype)
            else:
                room = min(positions, _window_positions(sight, sequences))
                prefix = f"{number}."
                part = WindowedCache(executor, own, room, dtype, sight=sight, prefix=prefix)
            parts[part] = [*members]
        if states:
            recurrent = RecurrentCache(executor, states, state_rows(states, sequences))
            parts[recurrent] = [*states]
        if encoded:
            if picture := max(shape.picture for shape in encoded.values()):
                # A picture takes hundreds of megabytes, and most are smaller than the largest.
                room = -(-sequences // 2) * -(-picture // BLOCK) * BLOCK
                texts = PicturesCache(executor, encoded, room, dtype)
            else:
                texts = EncodedCache(executor, encoded, positions, dtype)
            parts[texts] = ()
    # Nothing may stay allocated when a later part does not fit.
    except BaseException:
        for part in parts:
            part.close()
        raise
    return LayeredCache(parts, recurrent, positions, checkpoints, texts)


def state_rows(states: Mapping[int, StateShape], sequences: int) -> int:
    """Return the number of rows of states: enough for checkpoints if they fit `STATES_NBYTES`.

    Ideal are two rows and the passes to rewind for each sequence, so that all can be in every
    pass, plus checkpoints. Necessary are one row for each sequence, one to write, and the passes to
    rewind of a single sequence.

    Parameters
    ----------
    states : mapping of int to StateShape
        States by layer.
    """
    values = sum(prod(shape) for state in states.values() for shape in state.shapes.values())
    fitting = STATES_NBYTES // max(F32.nbytes(values), 1)
    ideal, necessary = (2 + REWIND) * sequences + CHECKPOINTS, sequences + REWIND + 1
    return max(necessary, min(ideal, fitting))


def _group_layers(
    layers: Sequence[LayerCache],
) -> dict[Sight | None, dict[int, LayerShape | SharedLayer]]:
    """Group layers with keys by window or chunk (None: neither), in the order of layers."""
    groups: dict[Sight | None, dict[int, LayerShape | SharedLayer]] = {}
    of: dict[int, dict[int, LayerShape | SharedLayer]] = {}
    for layer, kept in iterate_entries(layers):
        if isinstance(kept, LayerShape):
            sees_all = not kept.window and not kept.chunk
            sight = None if sees_all else Sight(kept.window, kept.chunk)
            of[layer] = groups.setdefault(sight, {})
            of[layer][layer] = kept
    for layer, kept in iterate_entries(layers):
        if isinstance(kept, SharedLayer):
            if kept.layer not in of:
                raise ModelError(
                    f"cache: layer {layer} shares keys of layer {kept.layer}, which has none; "
                    f"{sorted(of)} have"
                )
            of[kept.layer][layer] = kept
    return groups


def _window_positions(sight: Sight, sequences: int) -> int:
    """Return how many positions windows store: before the ends of sequences and checkpoints."""
    return sequences * sight.reach(PASS) + CHECKPOINTS * sight.reach(1)
