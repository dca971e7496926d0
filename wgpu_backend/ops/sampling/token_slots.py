"""Embedding rows of tokens that an earlier step chose, in one dispatch."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.ops.index.indexing import rows, rows_reference
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.sampling.sampling import resolve_tokens_reference


@op(dense=("ids",), trusted=True, shader="ops/index/rows")
def rows_of_tokens(x: Node, ids: Node, token_slots: Node) -> Launch:
    """Gather rows as `rows` does, with ids resolved as by `resolve_tokens`.

    Parameters
    ----------
    x : (n, cols)
        Any float or block format.
    ids : (k,), i32
        Rows, and references to slots of `token_slots`.
    token_slots : (slots,)
        i32, dense.

    Returns
    -------
    (k, cols), f32.
    """
    launch = rows.record(x, ids)
    return replace(
        launch,
        operands={**launch.operands, "ids_slots": token_slots},
        choices={
            **launch.choices,
            "ids": "lib/sampling/token_slot_ids",
            "TOKEN_SLOTS": token_slots.spec.shape[0],
        },
    )


@rows_of_tokens.reference
def rows_of_tokens_reference(x: Array, ids: Array, token_slots: Array) -> Array:
    """Gather the rows of tokens, including tokens in slots."""
    return rows_reference(x, resolve_tokens_reference(ids, token_slots))


@rows_of_tokens.fuses("rows")
def tokens_in_rows(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a gather of rows with the resolution of its ids, if nothing else reads the ids."""
    made = graph.single_use_producer(node.operands["ids"], "resolve_tokens")
    whole = node.launch.shader in ("", "ops/index/rows_quant") and len(node.spec.shape) == 2
    if made is None or not whole:
        return None
    x = node.operands.get("weights", node.operands.get("x"))
    if x is None:
        return None
    return graph.call(rows_of_tokens, x, made.operands["ids"], made.operands["token_slots"])
