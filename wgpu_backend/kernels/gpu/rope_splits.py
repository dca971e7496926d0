"""One op for norms, rotation, cache write and attention in ranges, for few tokens."""

from __future__ import annotations

from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.kernels.gpu.subgroups import EIGHT_LANES, has_eight_lanes
from wgpu_backend.kernels.refusal import no_kernel
from wgpu_backend.ops.attention.paged import Scores
from wgpu_backend.ops.attention.rope_attention import (
    fuse_prologue,
    has_bindings,
    prepared_launch,
    rope_attention_reference,
)
from wgpu_backend.ops.attention.splits import in_first_split
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array

MOST_TOKENS = 8  # of each of which every work group asks whether its own sees it
NEEDS = f"{EIGHT_LANES}, and 9 buffers, 11 with norms"


@op(
    shader="ops/attention/attention",
    select=no_kernel("rope_attention_splits", NEEDS, "rope_put and paged_attention_splits"),
    dense=("angles", "slot", "table"),
    trusted=True,
)
def rope_attention_splits(
    q: Node,
    key: Node,
    value: Node,
    angles: Node,
    slot: Node,
    k: Node,
    v: Node,
    positions: Node,
    sequences: Node,
    table: Node,
    query_norm: Node | None = None,
    key_norm: Node | None = None,
    *,
    interleaved: bool,
    scores: Scores,
    splits: int,
    eps: float = 0.0,
    sinks: Node | None = None,
) -> Launch:
    """Rotate tokens' queries and keys, put keys and values into the cache, and attend in ranges.

    Made by a fusion rule alone. Every work group rotates the queries it needs, and writes the keys
    and values of its head that it may see: of its token, and of others of the same sequence.

    Parameters
    ----------
    q, key, value, angles, slot, k, v, positions, sequences, table, query_norm, key_norm
        See `rope_attention`; of up to `MOST_TOKENS` tokens, and as many sequences at least.
    interleaved, scores, eps, sinks
        See `rope_attention`.
    splits : int
        Ranges of positions.

    Returns
    -------
    (tokens, heads, splits, v_cols + 4), f32
        For `attention_merge`.

    Raises
    ------
    ShapeError
        As `rope_attention`.
    DeviceError
        When it is run: the device has no kernel for it.
    """
    operands = (q, key, value, angles, slot, k, v, positions, sequences, table)
    norms = (query_norm, key_norm)
    return prepared_launch(
        *operands,
        norms,
        interleaved=interleaved,
        scores=scores,
        eps=eps,
        sinks=sinks,
        splits=splits,
        most_tokens=MOST_TOKENS,
    )


@rope_attention_splits.reference
def rope_attention_splits_reference(
    q: Array,
    key: Array,
    value: Array,
    angles: Array,
    slot: Array,
    k: Array,
    v: Array,
    positions: Array,
    sequences: Array,
    table: Array,
    query_norm: Array | None = None,
    key_norm: Array | None = None,
    *,
    interleaved: bool,
    scores: Scores,
    splits: int,
    eps: float = 0.0,
    sinks: Array | None = None,
) -> Array:
    """Apply `rope_attention`, with the whole result in the first split."""
    new, places = (q, key, value, angles, slot, k, v), (positions, sequences, table)
    whole = rope_attention_reference(
        *new,
        *places,
        query_norm,
        key_norm,
        interleaved=interleaved,
        scores=scores,
        eps=eps,
        sinks=sinks,
    )
    return in_first_split(whole, splits)


@rope_attention_splits.fuses("paged_attention_splits")
def with_rotation_and_write(node: OpNode, graph: Graph) -> Node | None:
    """Fuse the attention of few tokens in ranges with the `rope_put` before it."""
    if not has_eight_lanes(graph.capabilities) or not has_bindings(graph.capabilities):
        return None
    splits = node.call.kwargs["splits"]
    return fuse_prologue(node, graph, rope_attention_splits, MOST_TOKENS, splits=splits)
