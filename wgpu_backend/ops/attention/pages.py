"""Positions of sequences in a paged cache, and how far tokens see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce

from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.attention.paged_checks import PLACES
from wgpu_backend.ops.shape.copying import concat, contiguous
from wgpu_backend.ops.shape.views import make_view


@dataclass(frozen=True)
class Pages:
    """The position of each token, the cache blocks of each sequence, and how far tokens see.

    Parameters
    ----------
    positions : (tokens,), i32
        Position of each token in its sequence, counted as `table` counts; -1 attends to nothing.
    sequences : (tokens,), i32
        Row of `table` that each token belongs to.
    table : (sequences, blocks), i32
        Block of the cache that holds positions ``block * i`` to ``block * (i + 1) - 1``.
    block : int
        Positions in a block.
    ends : (tokens,), i32, or None
        Last position that each token sees, where that is behind its own: of an image's tokens the
        last of the image, of an encoder's the last of the text. None where all see their past.
    """

    positions: Node
    sequences: Node
    table: Node
    block: int
    ends: Node | None = None

    @property
    def operands(self) -> dict[str, Node]:
        """Return the tensors by the parameter names of `paged_attention`."""
        ends = {} if self.ends is None else {"ends": self.ends}
        return {**{name: getattr(self, name) for name in (*PLACES, "table")}, **ends}

    @cached_property
    def joined(self) -> Pages:
        """Return these pages with positions, sequences and ends in one buffer.

        Keys and values in blocks take two bindings each, and a kernel has eight.
        """
        return self._in_one(*PLACES, "ends")

    @cached_property
    def all_joined(self) -> Pages:
        """Return these pages with the table at the start of that buffer, too."""
        return self._in_one("table", *PLACES, "ends")

    def _in_one(self, *names: str) -> Pages:
        given = self.operands
        nodes = {name: given[name] for name in names if name in given}
        apart = len({node.storage for node in nodes.values()}) > 1
        return replace(self, **in_one_buffer(nodes)) if apart else self

    def part(self, start: int, stop: int) -> Pages:
        """Return the pages of tokens `start` to `stop`."""
        tokens = {
            name: slice_rows(n, start, stop) for name, n in self.operands.items() if name != "table"
        }
        return replace(self, **tokens)


def slice_rows(node: Node, start: int, stop: int) -> Node:
    """Return rows `start` to `stop` of a node; the node itself if these are all rows."""
    spec = node.spec
    stop = min(stop, spec.shape[0])
    if start == 0 and stop == spec.shape[0]:
        return node
    shape = (stop - start, *spec.shape[1:])
    return make_view(
        node, Spec(shape, spec.dtype, spec.strides, spec.offset + start * spec.strides[0])
    )


def in_one_buffer(nodes: Mapping[str, Node]) -> dict[str, Node]:
    """Return the same values as views of one tensor, in this order."""
    dense = [node if node.spec.is_dense else contiguous(node) for node in nodes.values()]
    rows = [make_view(n, replace(n.spec, shape=(n.spec.size,), strides=(1,))) for n in dense]
    joined = reduce(lambda a, b: concat(a, b, axis=0), rows)
    found, start = dict[str, Node](), 0
    for name, node in nodes.items():
        spec = Spec.dense(node.spec.shape, node.spec.dtype)
        found[name] = make_view(joined, replace(spec, offset=start))
        start += node.spec.size
    return found
