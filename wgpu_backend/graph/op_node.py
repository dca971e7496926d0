"""Nodes of a graph as fusion rules see them, and the ops that rules call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from wgpu_backend.graph.node import Call, Launch, Node
from wgpu_backend.graph.spec import Spec


class Callee(Protocol):
    """What a rule may call: an op."""

    def added(self, builder: Any, /, *args: Any, **kwargs: Any) -> Node:  # noqa: ANN401
        """Add the op's node to a graph."""
        ...


@dataclass(frozen=True, slots=True)
class OpNode:
    """A node that an op made, as rules see it."""

    node: Node
    call: Call
    launch: Launch

    @property
    def op(self) -> str:
        """Name of the op."""
        return self.call.op.name

    @property
    def operands(self) -> Mapping[str, Node]:
        """What it reads, by the names of its bindings."""
        return self.launch.operands

    @property
    def spec(self) -> Spec:
        """Of its result."""
        return self.node.spec

    @property
    def options(self) -> dict[str, Any]:
        """What the op was given by keyword beside its operands."""
        return {name: v for name, v in self.call.kwargs.items() if not isinstance(v, Node)}

    def arguments(self, *names: str) -> list[Any]:
        """Arguments that the op was called with, its operands as they were before it viewed them.

        Parameters
        ----------
        names : str
            The op's first parameters, in their order.
        """
        given = {**dict(zip(names, self.call.args, strict=False)), **self.call.kwargs}
        return [given[name] for name in names]


def made(node: Node) -> OpNode | None:
    """A node as rules see it; None for leaves and views."""
    if node.call is None or node.launch is None:
        return None
    return OpNode(node, node.call, node.launch)
