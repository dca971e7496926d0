"""One op for the norms of heads, their rotation, and the write of keys and values to the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.attention.position import rope_reference
from wgpu_backend.ops.attention.rope_attention import NORMS, has_kernel
from wgpu_backend.ops.attention.rope_put import fits, in_heads, source
from wgpu_backend.ops.check import grid_for, pad_to_4d, require
from wgpu_backend.ops.index.indexing import set_rows_reference
from wgpu_backend.ops.op import find, op
from wgpu_backend.ops.reduce.norm import rms_norm_reference
from wgpu_backend.ops.reference import Array

NAME = "heads_put"
Order = Literal["before", "after"]


@op(dense=("table", "slots"), trusted=True)
def heads_put(
    q: Node,
    k: Node,
    v: Node,
    slots: Node,
    keys: Node,
    values: Node,
    table: Node | None = None,
    query_norm: Node | None = None,
    key_norm: Node | None = None,
    *,
    eps: float,
    order: Order = "before",
    value_norm: bool = False,
    interleaved: bool = False,
) -> Launch:
    """Do what `rope_put` does, with an `rms_norm` of heads before or after the rotation.

    Only a fusion rule makes this op. The rule makes sure that readers of the cache run later.

    Parameters
    ----------
    q, k, v, slots, keys, values
        See `rope_put`; `q`, `k` and `v` are parts of one tensor.
    table : (tokens, pairs, 2), f32, or None for no rotation
        From `rope_table`; `pairs` a multiple of 4.
    query_norm, key_norm : (cols,), f32, or None
        Weights of the norms.
    eps : float
        Of the norms.
    order : str
        Whether queries and keys are normalised ``before`` or ``after`` they turn.
    value_norm : bool
        Whether values are, too, without a weight.
    interleaved : bool
        See `rope`.

    Returns
    -------
    (tokens, heads, cols), f32
        The queries.

    Raises
    ------
    ShapeError
        Queries, keys and values are parts of several tensors.
    """
    require(
        # They share a binding: with three there would be more than every device has.
        len({x.storage for x in (q, k, v)}) == 1,
        ShapeError,
        f"{NAME}: queries {q.spec.shape}, keys {k.spec.shape} and values {v.spec.shape} lie in "
        "several tensors, needs one; use rms_norm and rope_put",
    )
    tokens, heads, cols = q.spec.shape
    kv_heads, v_cols = v.spec.shape[1:]
    # A work group takes one head; by these ends it knows whether of a query, a key or a value.
    counts = heads, heads + kv_heads, heads + 2 * kv_heads
    weights = {"query_norm": query_norm, "key_norm": key_norm}
    return Launch(
        Spec.dense(q.spec.shape, F32),
        {
            "q": q,
            "k": k,
            "v": v,
            "slots": slots,
            "keys": keys,
            "values": values,
            **{name: q if weight is None else weight for name, weight in weights.items()},
            "angles": q if table is None else table,
        },
        groups=grid_for(tokens * counts[2]),
        params={
            "rows": tokens * counts[2],
            "counts": (*counts, 0),
            "cols": cols,
            "v_cols": v_cols,
            "pairs": 0 if table is None else table.spec.shape[1],
            "slot_rows": keys.spec.shape[0],
            "eps": eps,
            **{
                f"{n}_strides": pad_to_4d(x.spec.strides, 0)
                for n, x in (("q", q), ("k", k), ("v", v))
            },
        },
        choices={
            "INTERLEAVED": interleaved,
            "AFTER": order == "after",
            "VALUE_NORMED": value_norm,
            "QUERY_WEIGHTED": query_norm is not None,
            "KEY_WEIGHTED": key_norm is not None,
            "keys": f"lib/attention/cache_{keys.spec.dtype}",
            "values": f"lib/attention/cache_{values.spec.dtype}",
            **{name: "=q" for name, weight in weights.items() if weight is None},
        },
        writes=("keys", "values"),
        work=2 * (q.spec.nbytes + k.spec.nbytes + v.spec.nbytes),
    )


@heads_put.reference
def heads_put_reference(
    q: Array,
    k: Array,
    v: Array,
    slots: Array,
    keys: Array,
    values: Array,
    table: Array | None = None,
    query_norm: Array | None = None,
    key_norm: Array | None = None,
    *,
    eps: float,
    order: str = "before",
    value_norm: bool = False,
    interleaved: bool = False,
) -> Array:
    """Return the normalised and rotated queries; write keys and values into their slots."""

    def rotate(x: Array) -> Array:
        return x if table is None else rope_reference(x, table, interleaved=interleaved)

    def normalise(x: Array, weight: Array | None) -> Array:
        if order == "after":
            return rms_norm_reference(rotate(x), weight, eps=eps)
        return rotate(rms_norm_reference(x, weight, eps=eps))

    set_rows_reference(keys, normalise(k, key_norm).reshape(len(slots), -1), slots)
    v = rms_norm_reference(v, eps=eps) if value_norm else v
    set_rows_reference(values, v.reshape(len(slots), -1), slots)
    return normalise(q, query_norm)


@dataclass(frozen=True, slots=True)
class Heads:
    """The tensor that heads come from, and the norm and rotation applied to it.

    Parameters
    ----------
    x : Node
        Heads before all of it.
    table : Node or None
        Of a rotation.
    order : str
        Of norm and rotation.
    """

    x: Node
    table: Node | None
    interleaved: bool
    norm: OpNode | None
    order: Order


def _heads(x: Node, graph: Graph) -> Heads:
    """Find the norm and the rotation that made heads, in either order."""
    after = graph.single_use_producer(x, "rms_norm")
    x = after.operands["x"] if after else x
    rope = graph.single_use_producer(x, "rope")
    x = rope.operands["x"] if rope else x
    before = graph.single_use_producer(x, "rms_norm") if rope and not after else None
    x = before.operands["x"] if before else x
    table = rope.operands["table"] if rope else None
    turn = bool(rope and rope.launch.choices["INTERLEAVED"])
    return Heads(x, table, turn, after or before, "after" if after else "before")


@heads_put.fuses("paged_attention", "paged_attention_splits", "paged_attention_q8")
def normed_before_attention(node: OpNode, graph: Graph) -> Node | None:
    """Fuse norms of queries and keys, perhaps of values, rotation, and both cache writes."""
    put = graph.single_use_producer(node.operands["q"], "rope_put")
    return _behind_rope_put(node, put, graph) if put else _behind_writes(node, graph)


def _behind_rope_put(node: OpNode, put: OpNode, graph: Graph) -> Node | None:
    """Fuse norms with the `rope_put` that follows them."""
    q, k, v, table, slots, keys, values = put.call.args
    norms = [graph.single_use_producer(x, "rms_norm") for x in (q, k)]
    query, key = (
        Heads(norm.operands["x"] if norm else x, table, put.options["interleaved"], norm, "before")
        for norm, x in zip(norms, (q, k), strict=True)
    )
    launch = _put_heads(query, key, v, slots, keys, values, graph)
    if launch is None or not graph.absorb(put, node):
        return None
    return _attending(node, graph, *launch)


def _behind_writes(node: OpNode, graph: Graph) -> Node | None:
    """Fuse norms with the cache writes that follow, where there is no `rope_put`."""
    put_keys, put_values = (graph.write(node.operands[name], "set_rows") for name in "kv")
    # One write for both is a cache whose values are parts of keys, which `latent_put` handles.
    if put_keys is None or put_values is None or put_keys.node is put_values.node:
        return None
    slots, keys, values = put_keys.operands["ids"], put_keys.launch.into, put_values.launch.into
    if slots is not put_values.operands["ids"] or keys is None or values is None:
        return None
    query, key = _heads(node.operands["q"], graph), _heads(put_keys.operands["x"], graph)
    if len(key.x.spec.shape) != 3 or keys.storage is values.storage:
        return None
    v = in_heads(source(graph, put_values.operands["x"]), key.x.spec.shape[1])
    if v is None:
        return None
    launch = _put_heads(query, key, v, slots, keys, values, graph)
    if launch is None or not (graph.absorb(put_keys, node) and graph.absorb(put_values, node)):
        return None
    return _attending(node, graph, *launch)


def _put_heads(
    query: Heads, key: Heads, v: Node, slots: Node, keys: Node, values: Node, graph: Graph
) -> tuple[Node, Node, Node] | None:
    """Return nodes of the queries and of both written caches; None if the kernel does not fit."""
    norms = [heads.norm for heads in (query, key) if heads.norm is not None]
    alike = query.table is key.table and query.interleaved == key.interleaved
    if len(norms) != 2 or not alike or query.order != key.order:
        return None
    weights = [n.operands["weight"] if n.launch.choices["WEIGHTED"] else None for n in norms]
    of_values = graph.single_use_producer(v, "rms_norm")
    plain = of_values is not None and not of_values.launch.choices["WEIGHTED"]
    if of_values is not None and plain:
        norms.append(of_values)
        v = of_values.operands["x"]
    epsilons = {norm.options["eps"] for norm in norms}
    # The kernel has one epsilon for all norms.
    if len(epsilons) != 1 or not _fits(query, key, v, keys, values, weights):
        return None
    # `rope_attention` does all of this and the attention in one dispatch.
    if query.order == "before" and not plain and _attends_so(query.x, graph):
        return None
    queries = graph.call(
        heads_put,
        *(query.x, key.x, v, slots, keys, values, query.table, *weights),
        eps=epsilons.pop(),
        order=query.order,
        value_norm=plain,
        interleaved=query.interleaved,
    )
    return queries, keys, values


def _attends_so(q: Node, graph: Graph) -> bool:
    """Return whether attention itself normalises and rotates, which saves one more dispatch."""
    return q.spec.shape[0] == 1 and has_kernel(graph.capabilities, len(NORMS))


def _fits(
    query: Heads, key: Heads, v: Node, keys: Node, values: Node, weights: Sequence[Node | None]
) -> bool:
    """Return whether sizes are multiples of the kernel's vectors, and token counts agree."""
    q, k, table = query.x, key.x, query.table
    if not all(len(x.spec.shape) == 3 for x in (q, k, v)):
        return False
    together = len({x.storage for x in (q, k, v)}) == 1
    shapes = (
        together and k.spec.shape[2] == q.spec.shape[2] and k.spec.shape[:2] == v.spec.shape[:2]
    )
    norms = all(w is None or _is_row(w, q.spec.shape[2]) for w in weights)
    return (
        shapes
        and norms
        and q.spec.shape[0] == k.spec.shape[0]
        and fits(q, k, v, table, keys, values)
    )


def _is_row(weight: Node, cols: int) -> bool:
    spec = weight.spec
    return spec.shape == (cols,) and spec.dtype == F32 and spec.is_dense and not spec.offset % 4


def _attending(node: OpNode, graph: Graph, queries: Node, keys: Node, values: Node) -> Node:
    """Rebuild the attention so that it reads the cache after the write."""
    rest = [node.operands[name] for name in ("positions", "sequences", "table")]
    return graph.call(find(node.op), queries, keys, values, *rest, **node.call.kwargs)
