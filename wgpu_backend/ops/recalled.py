"""Rows of an embedding for tokens that an earlier step chose, without a dispatch to fetch them."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.graph.fusion import Graph, Made
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.ops.indexing import rows
from wgpu_backend.ops.op import op


@op(dense=("ids",), trusted=True, shader="rows")
def rows_recalled(x: Node, ids: Node, kept: Node) -> Launch:
    """Gather rows as `rows`, of ids as `recall` gives them.

    Parameters
    ----------
    x : (n, cols), any float or block format
    ids : (k,), i32
        Rows, and references to places of `kept`.
    kept : (places,), i32, dense

    Returns
    -------
    (k, cols), f32.
    """
    launch = rows.record(x, ids)
    return replace(
        launch,
        operands={**launch.operands, "ids_kept": kept},
        choices={**launch.choices, "ids": "ids/recalled", "PLACES": kept.spec.shape[0]},
    )


@rows_recalled.fuses("rows")
def recalled(node: Made, graph: Graph) -> Node | None:
    """Rows of a matrix for ids that nothing else needs."""
    made = graph.sole(node.operands["ids"], "recall")
    whole = node.launch.shader in ("", "rows_quant") and len(node.spec.shape) == 2
    if made is None or not whole:
        return None
    x = node.operands.get("weights", node.operands.get("x"))
    if x is None:
        return None
    return graph.call(rows_recalled, x, made.operands["ids"], made.operands["kept"])
