"""Norms computed inside products of few columns with float weights.

Every work group reads whole rows, so it can also sum their squares and multiply by the weight of
the norm. That is a fifth more instructions for one column, and two fifths for eight. Products with
floats have that many to spare, since they wait for memory; those with blocks do not.
"""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Node
from wgpu_backend.ops.check import FLOATS, row_count
from wgpu_backend.ops.linear.attributes import VALUES, Prologue, get_attributes
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.linear.normed import in_whole_groups
from wgpu_backend.ops.linear.rules import adds, again

MOST_COLUMNS = 8


@linear.fuses("linear", name="linear_norm")
def norm_in_rows(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a norm with the float products that alone read it."""
    norm = graph.producer(node.operands["x"], "rms_norm")
    if norm is None or not norm.launch.choices["WEIGHTED"] or not in_whole_groups(norm):
        return None
    if not graph.serves_only(norm.node, lambda reader: _makes_norm(reader, norm)):
        return None
    x, like = norm.operands["x"], node.operands["x"].spec
    rows = graph.view(x, replace(like, offset=x.spec.offset))
    prologue = Prologue(eps=norm.options["eps"], norm=True)
    return again(node, graph, x=rows, gain=norm.operands["weight"], prologue=prologue)


def _makes_norm(reader: OpNode, norm: OpNode) -> bool:
    """Return whether a node is a plain product of a float weight with the row of a norm."""
    if reader.op != "linear" or get_attributes(reader.launch).prologue != VALUES:
        return False
    x = reader.operands["x"]
    floats = reader.operands["weights"].spec.dtype in FLOATS
    whole = x.spec.is_dense and not x.spec.offset and x.spec.size == norm.spec.size
    row = x.spec.shape[-1] == norm.spec.shape[-1] and row_count(x.spec) <= MOST_COLUMNS
    alone = not adds(reader) or reader.operands["addend"].storage is not norm.node.storage
    return floats and whole and row and alone
