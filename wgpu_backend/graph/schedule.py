"""The schedule: the nodes that the outputs need, in the order they were made."""

from __future__ import annotations

from collections.abc import Iterable

from wgpu_backend.graph.node import Node


def schedule(outputs: Iterable[Node]) -> list[Node]:
    """Return the nodes with a launch that `outputs` depend on, in a valid order.

    The order of creation is valid even for ops that write into state: a read made before the
    write runs before it.
    """
    seen: set[Node] = set()
    # A stack, not recursion: graphs are deeper than Python's limit.
    stack = list(outputs)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        stack += node.dependencies()
    # The order in which nodes were made is valid, and it keeps writes between the right reads.
    return sorted((n for n in seen if n.launch is not None), key=lambda n: n.sequence)
