"""Latent attention: ops that join the two parts of heads, of which the second is rotated.

Latent attention (DeepSeek-AI 2024, "DeepSeek-V2", §2.1.3) makes both parts separately, for queries
and for keys. The first part of a key may come from a norm, and keys go into the cache. Written with
simple ops these are copies of strided parts, `rms_norm`, `rope`, `concat` and `set_rows`.
`rope_join` replaces them for queries or for keys, and `latent_put` for both at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wgpu_backend.dtypes import F16, F32, I32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec, reshape
from wgpu_backend.ops.attention.position import rope_reference
from wgpu_backend.ops.check import grid_for, pad_to_4d, require, require_dtype, require_rank
from wgpu_backend.ops.index.indexing import set_rows_reference
from wgpu_backend.ops.op import find, op
from wgpu_backend.ops.reduce.norm import rms_norm_reference
from wgpu_backend.ops.reference import Array

JOIN = "rope_join"
# Values of the rotated part that a thread takes.
OCTET = 8


@op(dense=("table", "slots", "weight"), trusted=True)
def rope_join(
    first: Node,
    second: Node,
    table: Node | None = None,
    weight: Node | None = None,
    dst: Node | None = None,
    slots: Node | None = None,
    *,
    interleaved: bool = False,
    eps: float | None = None,
) -> Launch:
    """Join two parts of heads: the first as it is, or its norm, and the second rotated.

    Parameters
    ----------
    first : (tokens, heads, i), f32; values of a head are neighbours
        `i`, offsets and strides are multiples of 4.
    second : (tokens, heads, j)
        f32; the same, `j` a multiple of 8.
    table : (tokens, pairs, 2), f32, or None for no rotation
        From `rope_table`; `pairs` a multiple of 4.
    weight : (i,), f32, or None
        Of the norm.
    dst : (rows, heads * (i + j)), f32 or f16, dense, or None; written
        A cache that the heads of a token are put into, in the row of its slot.
    slots : (tokens,), i32, or None
        Those outside `dst` are dropped.
    interleaved : bool
        See `rope`.
    eps : float or None
        The first part goes through `rms_norm` with it.

    Returns
    -------
    (tokens, heads, i + j), f32; or `dst` after the write.

    Raises
    ------
    ShapeError
        Shapes do not go together, or the kernel's vectors do not divide them.
    """
    _require(first, second, table, weight)
    tokens, heads, plain = first.spec.shape
    cols = plain + second.spec.shape[2]
    launch = Launch(
        Spec.dense((tokens, heads, cols), F32),
        {"first": first, "second": second, "weight": first if weight is None else weight},
        groups=grid_for(tokens * heads),
        params={
            "rows": tokens * heads,
            "heads": heads,
            "plain": plain,
            "cols": cols,
            "pairs": 0 if table is None else table.spec.shape[1],
            "eps": eps or 0.0,
            "dst_rows": 0,
            "slots_offset": 0,
            "first_strides": pad_to_4d(first.spec.strides, 0),
            "second_strides": pad_to_4d(second.spec.strides, 0),
        },
        choices={
            "NORMED": eps is not None,
            "WEIGHTED": weight is not None,
            "INTERLEAVED": interleaved,
            "y": "lib/attention/cache_f32",
        },
        work=2 * (first.spec.nbytes + second.spec.nbytes),
    )
    # The kernel binds every operand; without a rotation it does not read this one.
    angles = first if table is None else table
    launch = replace(launch, operands={**launch.operands, "angles": angles})
    return launch if dst is None or slots is None else _into(launch, dst, slots)


@rope_join.reference
def rope_join_reference(
    first: Array,
    second: Array,
    table: Array | None = None,
    weight: Array | None = None,
    dst: Array | None = None,
    slots: Array | None = None,
    *,
    interleaved: bool = False,
    eps: float | None = None,
) -> Array:
    """Join the first part, or its norm, with the rotated second; write into `dst`, if given."""
    first = first if eps is None else rms_norm_reference(first, weight, eps=eps)
    second = second if table is None else rope_reference(second, table, interleaved=interleaved)
    y = np.concatenate([first, second], axis=2)
    if dst is None or slots is None:
        return y
    return set_rows_reference(dst, y.reshape(len(y), -1), slots)


def _require(first: Node, second: Node, table: Node | None, weight: Node | None) -> None:
    for name, part in (("first", first), ("second", second)):
        require_rank(JOIN, name, part, 3, 3)
        require_dtype(JOIN, name, part, (F32,))
    for name, vector in (("table", table), ("weight", weight)):
        if vector is not None:
            require_dtype(JOIN, name, vector, (F32,))
    alike = first.spec.shape[:2] == second.spec.shape[:2]
    require(
        alike and fits(first, second, table, weight),
        ShapeError,
        f"{JOIN}: parts are {first.spec.shape} and {second.spec.shape} with strides "
        f"{first.spec.strides} and {second.spec.strides}, table and weight "
        f"{[None if x is None else x.spec.shape for x in (table, weight)]}; needs heads of one "
        "number in multiples of 4 and 8 values, neighbours, and angles for them",
    )


def fits(first: Node, second: Node, table: Node | None, weight: Node | None) -> bool:
    """Return whether the parts of heads are multiples of the kernel's vectors."""
    tokens, _, cols = second.spec.shape
    parts = all(
        x.spec.dtype == F32
        and (x.spec.strides[2] == 1 or x.spec.shape[2] == 1)
        and not any(n % 4 for n in (x.spec.offset, x.spec.shape[2], *x.spec.strides[:2]))
        for x in (first, second)
    )
    fits_table = table is None or (
        table.spec.shape[0] == tokens
        and table.spec.shape[2:] == (2,)
        and table.spec.shape[1] % 4 == 0
        and 2 * table.spec.shape[1] <= cols
        and table.spec.offset % 4 == 0
    )
    fits_weight = weight is None or (
        weight.spec.shape == first.spec.shape[2:]
        and weight.spec.dtype == F32
        and weight.spec.offset % 4 == 0
    )
    return parts and cols % OCTET == 0 and fits_table and fits_weight


def _into(launch: Launch, dst: Node, slots: Node) -> Launch:
    """Return a launch that writes its result into rows of a cache."""
    require_dtype(JOIN, "dst", dst, (F32, F16))
    require_dtype(JOIN, "slots", slots, (I32,))
    tokens, heads, cols = launch.out.shape
    require(
        _takes(dst, heads * cols) and slots.spec.shape == (tokens,),
        ShapeError,
        f"{JOIN}: dst is {dst.spec.shape} and slots {slots.spec.shape}, needs dense rows of "
        f"{heads * cols} values, and a slot for each of {tokens} tokens",
    )
    return replace(
        launch,
        out=dst.spec,
        operands={**launch.operands, "slots": slots},
        params={
            **launch.params,
            "dst_rows": dst.spec.shape[0],
            "slots_offset": slots.spec.offset,
        },
        choices={
            **launch.choices,
            "y": f"lib/attention/cache_{dst.spec.dtype}",
            "slots": "formats/load/i32",
        },
        into=dst,
    )


def _takes(dst: Node, cols: int) -> bool:
    """Return whether a cache is dense, starts at its storage's first byte, and fits the heads."""
    spec = dst.spec
    return spec.is_dense and not spec.offset and spec.shape[1:] == (cols,)


@dataclass(frozen=True, slots=True)
class Parts:
    """The two parts of heads.

    Parameters
    ----------
    first, second : Node
        Before a rotation.
    saved : int
        Dispatches that joining saves, in addition to its own.
    """

    first: Node
    second: Node
    table: Node | None
    interleaved: bool
    saved: int


def _parts(joint: OpNode, graph: Graph) -> Parts | None:
    """Find the parts of a `concat` of heads, or of the op that a fusion rule made of it."""
    if joint.op == JOIN:
        table = joint.operands["angles"] if joint.launch.count("pairs") else None
        turn = bool(joint.launch.choices["INTERLEAVED"])
        return Parts(joint.operands["first"], joint.operands["second"], table, turn, 1)
    a, b = joint.operands["a"], joint.operands["b"]
    heads = len(joint.spec.shape) == 3 and a.spec.shape[:2] == b.spec.shape[:2]
    if not heads or a.spec.shape[2] + b.spec.shape[2] != joint.spec.shape[2]:
        return None
    table, turn = None, False
    repeated = graph.single_use_producer(b, "window")
    one = repeated and _one_head(repeated)
    b = b if one is None else one
    rope = graph.single_use_producer(b, "rope")
    if rope is not None and rope.spec.shape == b.spec.shape:
        b, table, turn = (
            rope.operands["x"],
            rope.operands["table"],
            bool(rope.launch.choices["INTERLEAVED"]),
        )
    first, second = _source(a, graph), _source(b, graph)
    saved = (first is not a) + (second is not b) + (rope is not None) + (one is not None)
    if one is not None:
        second = Node(_for_heads(second.spec, joint.spec.shape[1]), second.storage)
    return Parts(first, second, table, turn, saved)


def _one_head(repeated: OpNode) -> Node | None:
    """Return the head that a window repeats for all heads, as `repeat` does."""
    x, shape = repeated.operands["x"], repeated.spec.shape
    how = repeated.options
    whole = how["repeated"] and not any(how["start"]) and len(shape) == len(x.spec.shape) == 3
    return x if whole and x.spec.shape == (shape[0], 1, shape[2]) else None


def _for_heads(spec: Spec, heads: int) -> Spec:
    """Return the spec that broadcasts one head to all of `heads`."""
    tokens, _, cols = spec.shape
    # Stride 0 along heads: every head reads the same values.
    strides = (spec.strides[0], 0, spec.strides[2])
    return Spec((tokens, heads, cols), spec.dtype, strides, spec.offset)


def _source(x: Node, graph: Graph) -> Node:
    """Return the tensor that a dense tensor is a copy of, or the tensor itself."""
    copy = graph.single_use_producer(x, "contiguous")
    return copy.operands["x"] if copy and copy.spec.shape == x.spec.shape else x


@rope_join.fuses("concat")
def joined_parts(node: OpNode, graph: Graph) -> Node | None:
    """Fuse two parts of heads, a rotation of the second, and the copies that made them dense."""
    found = _parts(node, graph)
    # Without a dispatch to save, `concat` alone is as fast, and the rule would match its own result
    # for ever.
    if found is None or not found.saved or node.spec.dtype != F32:
        return None
    if not fits(found.first, found.second, found.table, None):
        return None
    turn = found.interleaved
    return graph.call(rope_join, found.first, found.second, found.table, interleaved=turn)


@rope_join.fuses("set_rows")
def put_into_the_cache(node: OpNode, graph: Graph) -> Node | None:
    """Fuse joined heads that are only written into a cache, and the norm of their first part."""
    dst, x, slots = node.launch.into, node.operands["x"], node.operands["ids"]
    joint = graph.single_use_producer(x, JOIN, "concat")
    found = joint and _parts(joint, graph)
    if joint is None or found is None or dst is None or len(joint.spec.shape) != 3:
        return None
    if joint.launch.into is not None or dst.spec.dtype not in (F32, F16):
        return None
    tokens, heads, cols = joint.spec.shape
    rows = x.spec.shape == (tokens, heads * cols) and slots.spec.shape == (tokens,)
    if not rows or not _takes(dst, heads * cols):
        return None
    first, weight, eps = _split_norm(found.first, joint, graph)
    if not fits(first, found.second, found.table, weight):
        return None
    parts = (first, found.second, found.table, weight, dst, slots)
    return graph.call(rope_join, *parts, interleaved=found.interleaved, eps=eps)


def _split_norm(x: Node, joint: OpNode, graph: Graph) -> tuple[Node, Node | None, float | None]:
    """Return the norm's input, weight and epsilon, if a part is a norm; else the part itself."""
    norm = graph.producer(x, "rms_norm")
    own = norm and _in_shape(norm.operands["x"], x.spec.shape)
    alone = graph.read_by(x.storage, joint)
    if norm is None or own is None or not alone or norm.spec.shape[-1:] != x.spec.shape[-1:]:
        return x, None, None
    weight = norm.operands["weight"] if norm.launch.choices["WEIGHTED"] else None
    return own, weight, float(norm.options["eps"])


def _in_shape(x: Node, shape: Shape) -> Node | None:
    """View a tensor in another shape; return None where that needs a copy."""
    spec = reshape(x.spec, shape)
    return None if spec is None else Node(spec, x.storage)


PUT = "latent_put"


@op(dense=("table", "slots", "weight"), trusted=True)
def latent_put(
    first: Node,
    second: Node,
    latents: Node,
    shared: Node,
    keys: Node,
    slots: Node,
    table: Node | None = None,
    weight: Node | None = None,
    *,
    interleaved: bool = False,
    eps: float | None = None,
) -> Launch:
    """Join parts of queries, and write the joined parts of keys into a cache, as `rope_join` does.

    Only a fusion rule makes this op. The rule makes sure that readers of the cache run later.

    Parameters
    ----------
    first, second : (tokens, heads, i) and (tokens, heads, j), f32
        Of queries; see `rope_join`.
    latents, shared : (tokens, 1, i) and (tokens, 1, j), f32
        Of keys, parts of one tensor.
    keys : (rows, i + j), f32 or f16, dense; written
        The cache.
    slots : (tokens,), i32
        Those outside `keys` are dropped.
    table, weight, interleaved, eps
        See `rope_join`; the norm is of latents.

    Returns
    -------
    (tokens, heads, i + j), f32
        The queries.

    Raises
    ------
    ShapeError
        Shapes do not go together, or latents and what is shared lie in several tensors.
    """
    tokens, heads, plain = first.spec.shape
    cols = plain + second.spec.shape[2]
    require(
        fits_both(first, second, latents, shared, keys, table, weight),
        ShapeError,
        f"{PUT}: queries are {first.spec.shape} and {second.spec.shape}, keys "
        f"{latents.spec.shape} and {shared.spec.shape} into {keys.spec.shape}; needs parts of one "
        f"size, keys of {cols} values in one tensor, see rope_join",
    )
    return Launch(
        Spec.dense((tokens, heads, cols), F32),
        {
            "first": first,
            "second": second,
            "latents": latents,
            "weight": first if weight is None else weight,
            "angles": first if table is None else table,
            "keys": keys,
            "slots": slots,
        },
        # One more row for each token: its key.
        groups=grid_for(tokens * (heads + 1)),
        params={
            "rows": tokens * (heads + 1),
            "heads": heads,
            "plain": plain,
            "cols": cols,
            "pairs": 0 if table is None else table.spec.shape[1],
            "eps": eps or 0.0,
            "slot_rows": keys.spec.shape[0],
            "shared_offset": shared.spec.offset,
            "latents_stride": latents.spec.strides[0],
            "shared_stride": shared.spec.strides[0],
            "first_strides": pad_to_4d(first.spec.strides, 0),
            "second_strides": pad_to_4d(second.spec.strides, 0),
        },
        choices={
            "NORMED": eps is not None,
            "WEIGHTED": weight is not None,
            "INTERLEAVED": interleaved,
            "keys": f"lib/attention/cache_{keys.spec.dtype}",
        },
        writes=("keys",),
        work=2 * (first.spec.nbytes + second.spec.nbytes + latents.spec.nbytes),
    )


@latent_put.reference
def latent_put_reference(
    first: Array,
    second: Array,
    latents: Array,
    shared: Array,
    keys: Array,
    slots: Array,
    table: Array | None = None,
    weight: Array | None = None,
    *,
    interleaved: bool = False,
    eps: float | None = None,
) -> Array:
    """Return the queries; write the keys into their cache."""
    rope_join_reference(
        latents, shared, table, weight, keys, slots, interleaved=interleaved, eps=eps
    )
    return rope_join_reference(first, second, table, interleaved=interleaved)


def fits_both(
    first: Node,
    second: Node,
    latents: Node,
    shared: Node,
    keys: Node,
    table: Node | None,
    weight: Node | None,
) -> bool:
    """Return whether shapes of query and key parts agree and fit the kernel's vectors."""
    parts, spec = (first, second, latents, shared), keys.spec
    if any(len(x.spec.shape) != 3 for x in parts):
        return False
    tokens, _, plain = first.spec.shape
    alike = [x.spec.shape for x in parts[2:]] == [(tokens, 1, x.spec.shape[2]) for x in parts[:2]]
    cache = spec.is_dense and not spec.offset and spec.dtype in (F32, F16)
    return (
        alike
        and cache
        and spec.shape[1:] == (plain + second.spec.shape[2],)
        and first.spec.shape[:2] == second.spec.shape[:2]
        and latents.storage is shared.storage
        and fits(first, second, table, None)
        and fits(latents, shared, table, weight)
    )


@latent_put.fuses("paged_attention", "paged_attention_splits", "paged_attention_q8")
def before_latent_attention(node: OpNode, graph: Graph) -> Node | None:
    """Fuse the joins of queries and of keys, and the write of the keys."""
    queries = graph.single_use_producer(node.operands["q"], JOIN)
    write = graph.write(node.operands["k"], JOIN)
    if queries is None or write is None or queries.launch.into is not None:
        return None
    # In latent attention values are columns of keys, so the cache is one.
    if node.operands["v"].storage is not write.node.storage:
        return None
    table, turn = _table(queries), _turn(queries)
    keys, latents, shared = write.launch.into, write.operands["first"], write.operands["second"]
    if keys is None or not _same(_table(write), table) or _turn(write) != turn:
        return None
    weight = write.operands["weight"] if write.launch.choices["WEIGHTED"] else None
    parts = queries.operands["first"], queries.operands["second"], latents, shared
    # The kernel normalises keys only.
    if queries.launch.choices["NORMED"] or not fits_both(*parts, keys, table, weight):
        return None
    if not graph.absorb(write, node):
        return None
    slots = write.operands["slots"]
    eps = write.options.get("eps")
    joined = graph.call(latent_put, *parts, keys, slots, table, weight, interleaved=turn, eps=eps)
    rest = [node.operands[name] for name in ("positions", "sequences", "table")]
    # Values are the first columns of keys.
    return graph.call(find(node.op), joined, keys, keys, *rest, **node.call.kwargs)


def _table(join: OpNode) -> Node | None:
    """Return the rotation's table of angles; None without a rotation."""
    return join.operands["angles"] if join.launch.count("pairs") else None


def _turn(join: OpNode) -> bool:
    return bool(join.launch.choices["INTERLEAVED"])


def _same(a: Node | None, b: Node | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.storage is b.storage and a.spec == b.spec
