"""One op for the queries of latent attention and the write of each token's key into the cache."""

from __future__ import annotations

from wgpu_backend.dtypes import F16, F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.attention.rope_join import NAME as JOIN
from wgpu_backend.ops.attention.rope_join import fits, rope_join_reference
from wgpu_backend.ops.check import grid_for, pad_to_4d, require
from wgpu_backend.ops.op import find, op
from wgpu_backend.ops.reference import Array

NAME = "latent_put"


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
        f"{NAME}: queries are {first.spec.shape} and {second.spec.shape}, keys "
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
    if node.operands["v"].storage is not write.node.storage:
        return None
    table, turn = _table(queries), _turn(queries)
    keys, latents, shared = write.launch.into, write.operands["first"], write.operands["second"]
    if keys is None or not _same(_table(write), table) or _turn(write) != turn:
        return None
    weight = write.operands["weight"] if write.launch.choices["WEIGHTED"] else None
    parts = queries.operands["first"], queries.operands["second"], latents, shared
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
