"""One op for the rotation of queries and keys, and the write of keys and values into the cache."""

from __future__ import annotations

from wgpu_backend.dtypes import F16, F32
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.attention.position import rope_reference
from wgpu_backend.ops.check import pad_to_4d
from wgpu_backend.ops.index.indexing import set_rows_reference
from wgpu_backend.ops.op import find, op
from wgpu_backend.ops.reference import Array

# Values of one head that a thread takes.
OCTET = 8


@op(dense=("table", "slots"), trusted=True)
def rope_put(
    q: Node,
    k: Node,
    v: Node,
    table: Node,
    slots: Node,
    keys: Node,
    values: Node,
    *,
    interleaved: bool,
) -> Launch:
    """Rotate queries and keys, and put keys and values into their slots of the cache.

    Only a fusion rule makes this op. The rule makes sure that readers of the cache run later.

    Parameters
    ----------
    q : (tokens, heads, cols)
        f32.
    k : (tokens, kv_heads, cols)
        f32.
    v : (tokens, kv_heads, v_cols), f32
        `cols`, `v_cols`, offsets and strides are multiples of 8, 8, 4 and 4.
    table : (tokens, pairs, 2), f32
        From `rope_table`; `pairs` a multiple of 4.
    slots : (tokens,), i32
        Row of the cache of each token; those outside it are dropped.
    keys : (positions, kv_heads * cols)
        f32 or f16, a state; written.
    values : (positions, kv_heads * v_cols)
        f32 or f16, a state; written.
    interleaved : bool
        See `rope`.

    Returns
    -------
    (tokens, heads, cols), f32
        The rotated queries.
    """
    tokens, heads, cols = q.spec.shape
    kv_heads, v_cols = v.spec.shape[1:]
    # Threads of queries, of keys and of values, in this order.
    counts = (heads * cols // OCTET, kv_heads * cols // OCTET, kv_heads * v_cols // OCTET)
    total = sum(counts)
    return Launch(
        Spec.dense(q.spec.shape, F32),
        {"q": q, "k": k, "v": v, "angles": table, "slots": slots, "keys": keys, "values": values},
        threads=tokens * total,
        params={
            "size": tokens * total,
            "octets": (counts[0], counts[0] + counts[1], total, total),
            "cols": cols,
            "v_cols": v_cols,
            "pairs": table.spec.shape[1],
            "rows": keys.spec.shape[0],
            "heads": heads,
            "kv_heads": kv_heads,
            **{
                f"{n}_strides": pad_to_4d(x.spec.strides, 0)
                for n, x in (("q", q), ("k", k), ("v", v))
            },
        },
        choices={
            "INTERLEAVED": interleaved,
            "keys": f"lib/attention/cache_{keys.spec.dtype}",
            "values": f"lib/attention/cache_{values.spec.dtype}",
        },
        writes=("keys", "values"),
        work=2 * (q.spec.nbytes + k.spec.nbytes + v.spec.nbytes),
    )


@rope_put.reference
def rope_put_reference(
    q: Array,
    k: Array,
    v: Array,
    table: Array,
    slots: Array,
    keys: Array,
    values: Array,
    *,
    interleaved: bool,
) -> Array:
    """Return the rotated queries; write keys and values into their slots."""
    tokens = len(slots)
    set_rows_reference(
        keys, rope_reference(k, table, interleaved=interleaved).reshape(tokens, -1), slots
    )
    set_rows_reference(values, v.reshape(tokens, -1), slots)
    return rope_reference(q, table, interleaved=interleaved)


@rope_put.fuses("paged_attention", "paged_attention_splits", "paged_attention_q8")
def before_attention(node: OpNode, graph: Graph) -> Node | None:
    """Fuse the rotations and cache writes between a layer's products and its attention."""
    query = graph.single_use_producer(node.operands["q"], "rope")
    put_keys, put_values = (graph.write(node.operands[name], "set_rows") for name in "kv")
    key = put_keys and graph.single_use_producer(put_keys.operands["x"], "rope")
    if not (query and key and put_keys and put_values):
        return None
    q, k = query.operands["x"], key.operands["x"]
    v = in_heads(source(graph, put_values.operands["x"]), k.spec.shape[1])
    table, slots = query.operands["table"], put_keys.operands["ids"]
    turn = query.launch.choices["INTERLEAVED"]
    alike = table is key.operands["table"] and turn == key.launch.choices["INTERLEAVED"]
    same = alike and slots is put_values.operands["ids"]
    keys, values = put_keys.launch.into, put_values.launch.into
    # WebGPU allows no second binding of a buffer that a kernel writes.
    if keys is None or values is None or v is None or not same or keys.storage is values.storage:
        return None
    if not fits(q, k, v, table, keys, values):
        return None
    if not (graph.absorb(put_keys, node) and graph.absorb(put_values, node)):
        return None
    turned = graph.call(rope_put, q, k, v, table, slots, keys, values, interleaved=bool(turn))
    rest = [node.operands[name] for name in ("positions", "sequences", "table")]
    # By keyword come ends, sinks and bias, too.
    return graph.call(find(node.op), turned, keys, values, *rest, **node.call.kwargs)


def source(graph: Graph, x: Node) -> Node:
    """Return the tensor that `x` is a dense copy of, or `x` itself."""
    copy = graph.single_use_producer(x, "contiguous")
    return copy.operands["x"] if copy else x


def in_heads(x: Node, heads: int) -> Node | None:
    """View rows (tokens, heads * cols) as (tokens, heads, cols)."""
    if len(x.spec.shape) == 3:
        return x
    tokens, cols = x.spec.shape
    if x.spec.strides[1] != 1 or cols % heads:
        return None
    each = cols // heads
    spec = Spec((tokens, heads, each), x.spec.dtype, (x.spec.strides[0], each, 1), x.spec.offset)
    return Node(spec, x.storage)


def fits(q: Node, k: Node, v: Node, table: Node | None, keys: Node, values: Node) -> bool:
    """Return whether sizes and offsets are multiples of the kernel's vectors of four and eight."""
    rows = all(
        x.spec.dtype == F32
        and x.spec.shape[2] % OCTET == 0
        and x.spec.strides[2] == 1
        and not any(s % 4 for s in (x.spec.offset, *x.spec.strides[:2]))
        for x in (q, k, v)
    )
    pairs_fit = table is None or (
        table.spec.shape[1] % 4 == 0 and table.spec.is_dense and table.spec.offset % 4 == 0
    )
    caches = all(
        c.storage.kind == "state" and c.spec.dtype in (F32, F16) and not c.spec.offset
        for c in (keys, values)
    )
    return rows and pairs_fit and caches
