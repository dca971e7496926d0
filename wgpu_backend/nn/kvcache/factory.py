"""The cache of a model's layers: one part for each kind of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from wgpu_backend.dtypes import F16, F32, DType
from wgpu_backend.errors import ModelError
from wgpu_backend.ml.executor import Executor
from wgpu_backend.nn.kvcache.cache import Cache
from wgpu_backend.nn.kvcache.checkpoints import Checkpoints
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
from wgpu_backend.nn.kvcache.paged import PagedCache
from wgpu_backend.nn.kvcache.recurrent import RecurrentCache
from wgpu_backend.nn.kvcache.windowed import Sight, WindowedCache

CHECKPOINTS = 8  # that there is room for, over all sequences
REWIND = 3  # passes that a stream may have under way beyond the token that ends it
STATES_NBYTES = 512 << 20  # that states may take with more rows than are needed
PASS = 256  # tokens of a pass, about: ends of passes are what checkpoints are chosen from


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
    executor : Executor
    layers : sequence of LayerCache
    sequences : int
        How many may be long at once: room of windows and states is for these.
    positions : int
        Over all sequences.
    dtype : DType
        Of keys and values.
    checkpoints : Checkpoints or None
        None for as many as there is room for at `positions`.

    Raises
    ------
    DTypeError, ShapeError
        Keys or values cannot have that type.
    ModelError
        A layer shares keys with one that has none.
    OutOfMemory
        It does not fit; nothing stays allocated.
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
            parts[texts := EncodedCache(executor, encoded, positions, dtype)] = ()
    except BaseException:
        for part in parts:
            part.close()
        raise
    return LayeredCache(parts, recurrent, positions, checkpoints, texts)


def state_rows(states: Mapping[int, StateShape], sequences: int) -> int:
    """Rows of states: as many as are wanted, or as fit `STATES_NBYTES`, or as are needed.

    Wanted are two for each sequence and what it may take back, so that all go on in each pass, and
    checkpoints. Needed is a row for each sequence, for the one whose turn it is what it may take
    back, and one to write.

    Parameters
    ----------
    states : mapping of int to StateShape
        By layer.
    sequences : int
    """
    values = sum(prod(shape) for state in states.values() for shape in state.shapes.values())
    fitting = STATES_NBYTES // max(F32.nbytes(values), 1)
    wanted, needed = (2 + REWIND) * sequences + CHECKPOINTS, sequences + REWIND + 1
    return max(needed, min(wanted, fitting))


def _group_layers(
    layers: Sequence[LayerCache],
) -> dict[Sight | None, dict[int, LayerShape | SharedLayer]]:
    """Layers with keys by how far they see, None for all; the order is that of the layers."""
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
    """Positions that a window takes: where sequences are, and at the checkpoints."""
    return sequences * sight.reach(PASS) + CHECKPOINTS * sight.reach(1)
