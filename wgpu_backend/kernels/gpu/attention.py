"""Attention on GPUs: tokens that share no keys, ranges of positions, and the merge of these.

Eight lanes of a subgroup read a key together, so that a key's words are loaded once for all query
heads that share it. Tokens that share keys are taken in tiles: see `attention_tiles`, which needs
arithmetic in f16, and the portable kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from wgpu_backend.dtypes import F16, F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.fusion import Callee, Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec
from wgpu_backend.kernels.gpu.attention_tiles import cache_modules
from wgpu_backend.kernels.gpu.rows import IN_Q16, ROUNDING
from wgpu_backend.kernels.gpu.subgroups import EIGHT_LANES, has_eight_lanes
from wgpu_backend.kernels.refusal import no_kernel
from wgpu_backend.ops.attention.paged import Scores, paged_attention, paged_attention_splits
from wgpu_backend.ops.attention.paged_kernels import Rows, count_rows
from wgpu_backend.ops.attention.rope_attention import (
    fuse_prologue,
    has_bindings,
    more_bindings,
    prepared_launch,
    rope_attention_reference,
)
from wgpu_backend.ops.attention.splits import attention_merge_reference, in_first_split
from wgpu_backend.ops.check import require, require_dtype, require_rank
from wgpu_backend.ops.linear.f16_groups import f16_activations_reference, f16_spec
from wgpu_backend.ops.linear.q8_rounding import GROUP, q8_activations_reference, rounded_spec
from wgpu_backend.ops.linear.q16 import q16_activations_reference, q16_spec
from wgpu_backend.ops.op import find, op
from wgpu_backend.ops.reference import Array

FOLDER = "kernels/gpu"
# Lanes of a subgroup that read a key together: 8 lanes exist on every GPU with subgroups.
CLUSTER = 8
# Vectors of results that each of them holds, and of queries. More would leave no registers for
# keys.
CLUSTER_SUMS = 16
THREADS = 64


def attend(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Return the launch of attention by clusters of lanes; None if tokens share keys."""
    rows = count_rows(launch)
    if not has_eight_lanes(capabilities) or rows.tokens > rows.sequences:
        return None
    scores = launch.attributes
    f16 = isinstance(scores, Scores) and scores.f16
    return _clusters(launch, rows, launch.count("v_vec4s"), f16=f16)


def attend_prepared(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Attend after norms, rotation and cache write; None if the device binds too few buffers."""
    if not has_bindings(capabilities, more_bindings(launch)):
        return None
    found = attend(launch, capabilities)
    return found and _with_prologue(found)


@paged_attention.fuses("paged_attention", exact=False)
@paged_attention_splits.fuses("paged_attention_splits", exact=False)
def in_f16(node: OpNode, graph: Graph) -> Node | None:
    """Replace a token's attention by the op with f16 products, if rounding is allowed."""
    scores: Scores = node.call.kwargs["scores"]
    able = has_eight_lanes(graph.capabilities) and graph.capabilities.f16
    narrow = all(node.operands[n].spec.dtype != F32 for n in "kv")
    rows = count_rows(node.launch)
    if scores.f16 or not able or not narrow or rows.tokens > rows.sequences:
        return None
    kwargs = {**node.call.kwargs, "scores": replace(scores, f16=True)}
    return graph.call(find(node.op), *node.call.args, **kwargs)


def _with_prologue(launch: Launch) -> Launch:
    """Return a launch that rotates queries in registers, because every split needs them."""
    # This family's prologues have the names of the portable ones. They rotate queries in registers,
    # not where they lie.
    name = str(launch.choices["prologue"]).rpartition("/")[2]
    prologue = f"{FOLDER}/prologue/{name}"
    return replace(launch, choices={**launch.choices, "prologue": prologue})


def _clusters(launch: Launch, rows: Rows, v_vec4s: int, *, f16: bool) -> Launch | None:
    k_lane, v_lane = (-(-vec4s // CLUSTER) for vec4s in (launch.count("k_vec4s"), v_vec4s))
    most = CLUSTER_SUMS // max(k_lane, v_lane)
    # A single query would leave no registers.
    if not most:
        return None
    shared = "SHARED" in launch.choices
    # Tiles of equal size: 5 heads in tiles of at most 4 are 3 and 2, not 4 and 1.
    step = -(-rows.group // -(-rows.group // most))
    choices: dict[str, str | int] = {
        "ROWS": step,
        "K_VEC4S": k_lane,
        "V_VEC4S": v_lane,
        "K_EVEN": k_lane * CLUSTER == launch.count("k_vec4s"),
        "V_EVEN": v_lane * CLUSTER == v_vec4s and not shared,
        "BLOCK": launch.count("block"),
        "WG": THREADS,
        "KEYS": _keys(launch, f16=f16),
        "LAST_SLOT": _last_slot(launch),
    }
    return replace(
        launch,
        shader=f"{FOLDER}/attention_token",
        groups=(
            launch.count("kv_heads"),
            max(rows.tokens * -(-rows.group // step), 1),
            launch.count("splits"),
        ),
        params={**launch.params, "step": step},
        choices={
            **launch.choices,
            **choices,
            **cache_modules(launch, f16=f16),
            "sums": f"{FOLDER}/lib/sums_{'f16' if f16 else 'f32'}",
        },
    )


def _last_slot(launch: Launch) -> int:
    """Return the highest index of a head of keys or values within 4 GiB of the cache."""
    kv_heads = launch.count("kv_heads")
    rows = (launch.operands[name].spec for name in "kv" if name in launch.operands)
    nbytes = max(Spec.dense((spec.shape[-1],), spec.dtype).nbytes // kv_heads for spec in rows)
    # With this bound the compiler can prove that byte offsets do not wrap around.
    return (1 << 32) // max(nbytes, 1) - 1


def _keys(launch: Launch, *, f16: bool) -> int:
    """Return how many positions a cluster takes at once: as many as fit into registers."""
    return 8 if f16 and all(launch.operands[n].spec.dtype == F16 for n in "kv") else 4


# Every work group checks each of the other tokens for whether its own token sees it.
MOST_TOKENS = 8
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


# Values after the sums of a split: its largest score, its total, and two that fill up the vector.
TAIL = 4
IN_F16 = f"{EIGHT_LANES}, and arithmetic in f16"


@op(
    select=no_kernel("attention_merge_q8", EIGHT_LANES, "attention_merge and q8_activations"),
    shader="kernels/gpu/attention_merge_q8",
    dense=("x",),
    trusted=True,
)
def attention_merge_q8(x: Node, *, planar: bool = False) -> Launch:
    """Merge attention over ranges of positions, rounded as by `q8_activations`.

    Parameters
    ----------
    x : (tokens, heads, splits, cols + 4), f32
        See `attention_merge`; `cols` is a multiple of 32.
    planar : bool
        See `q8_activations`.

    Returns
    -------
    (tokens, heads * cols / 32, 12), u32, or planar (3, tokens, heads * cols / 32, 4)

    Raises
    ------
    ShapeError
        A head is not made of whole groups.
    DeviceError
        When it is run: the device has no kernel for it.
    """
    rows, groups = _extents("attention_merge_q8", x)
    return _merging(x, rounded_spec(rows, groups, planar), {"PLANAR": planar})


@attention_merge_q8.reference
def attention_merge_q8_reference(x: Array, *, planar: bool = False) -> Array:
    """Merge splits, then round."""
    return q8_activations_reference(attention_merge_reference(x).reshape(len(x), -1), planar=planar)


@op(
    select=no_kernel("attention_merge_q16", EIGHT_LANES, "attention_merge and q16_activations"),
    shader="kernels/gpu/attention_merge_q8",
    dense=("x",),
    trusted=True,
)
def attention_merge_q16(x: Node) -> Launch:
    """Merge attention over ranges of positions, rounded as by `q16_activations`.

    Parameters
    ----------
    x : (tokens, heads, splits, cols + 4), f32
        See `attention_merge`; `cols` is a multiple of 32.

    Returns
    -------
    (5, tokens, heads * cols / 32, 4), u32

    Raises
    ------
    ShapeError
        A head is not made of whole groups.
    DeviceError
        When it is run: the device has no kernel for it.
    """
    rows, groups = _extents("attention_merge_q16", x)
    return _merging(x, q16_spec(rows, groups), IN_Q16)


@attention_merge_q16.reference
def attention_merge_q16_reference(x: Array) -> Array:
    """Merge splits, then round to sixteen bits."""
    return q16_activations_reference(attention_merge_reference(x).reshape(len(x), -1))


@op(
    select=no_kernel("attention_merge_f16", IN_F16, "attention_merge and f16_activations"),
    shader="kernels/gpu/attention_merge_q8",
    dense=("x",),
    trusted=True,
)
def attention_merge_f16(x: Node, *, planar: bool = False, nibbles: bool = False) -> Launch:
    """Merge attention over ranges of positions, rounded as by `f16_activations`.

    Parameters
    ----------
    x : (tokens, heads, splits, cols + 4), f32
        See `attention_merge`; `cols` is a multiple of 32.
    planar, nibbles : bool
        See `f16_activations`.

    Returns
    -------
    (tokens, heads * cols / 32, 20), u32, or planar (5, tokens, heads * cols / 32, 4)

    Raises
    ------
    ShapeError
        A head is not made of whole groups.
    DeviceError
        When it is run: the device has no kernel for it.
    """
    rows, groups = _extents("attention_merge_f16", x)
    choices = {**ROUNDING, "PLANAR": planar, "NIBBLES": nibbles}
    return _merging(x, f16_spec(rows, groups, planar), choices)


@attention_merge_f16.reference
def attention_merge_f16_reference(
    x: Array, *, planar: bool = False, nibbles: bool = False
) -> Array:
    """Merge splits, then round to f16 by groups."""
    y = attention_merge_reference(x).reshape(len(x), -1)
    return f16_activations_reference(y, planar=planar, nibbles=nibbles)


def _extents(name: str, x: Node) -> tuple[Shape, int]:
    """Return the shape of a result's rows, (tokens,), and the number of f16 groups in a row."""
    require_rank(name, "x", x, 4)
    require_dtype(name, "x", x, (F32,))
    tokens, heads, _, width = x.spec.shape
    cols = width - TAIL
    require(
        cols > 0 and cols % GROUP == 0,
        ShapeError,
        f"{name}: values of a head are {cols}, needs a multiple of {GROUP}",
    )
    return (tokens,), heads * cols // GROUP


def _merging(x: Node, out: Spec, choices: Mapping[str, str | bool]) -> Launch:
    tokens, heads, splits, width = x.spec.shape
    cols = width - TAIL
    size = tokens * heads * cols // GROUP
    return Launch(
        out,
        {"x": x},
        threads=8 * size,
        params={"size": size, "splits": splits, "vec4s": cols // 4},
        choices={**choices},
        work=x.spec.nbytes,
    )


def merges_f16(capabilities: Capabilities) -> bool:
    """Return whether eight lanes exchange values, and f16 arithmetic is available."""
    return capabilities.f16 and has_eight_lanes(capabilities)


def merge(launch: Launch, _: object) -> Launch:
    """Return the launch of a merge with eight lanes for each group of values."""
    return launch


@attention_merge_q8.fuses("q8_activations", exact=False)
def rounded_merge(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a merge with the rounding to eight bits, if only products read it."""
    return _merge(node, graph, attention_merge_q8)


@attention_merge_q16.fuses("q16_activations", exact=False)
def merge_in_q16(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a merge with the rounding to sixteen bits, if only products read it."""
    return _merge(node, graph, attention_merge_q16)


@attention_merge_f16.fuses("f16_activations", exact=False)
def merge_in_f16(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a merge with the rounding to f16, if only products read it."""
    return _merge(node, graph, attention_merge_f16)


def _merge(node: OpNode, graph: Graph, merge: Callee) -> Node | None:
    """Return a merge by an op that rounds as `node` does; None if the shapes differ."""
    found = graph.single_use_producer(node.operands["x"], "attention_merge")
    if found is None or found.spec.shape[-1] % GROUP:
        return None
    made = graph.call(merge, found.operands["x"], **node.options)
    return made if made.spec.shape == node.spec.shape else None
