"""Nodes of a graph as fusion rules see them, and the ops that rules call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from wgpu_backend.graph.node import Call, Launch, Node
from wgpu_backend.graph.spec import Spec


class Callee(Protocol):
    """An op that a rule may call."""

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
        """The name of the op."""
        return self.call.op.name

    @property
    def operands(self) -> Mapping[str, Node]:
        """The operands, by the names of their bindings."""
        return self.launch.operands

    @property
    def spec(self) -> Spec:
        """The spec of the result."""
        return self.node.spec

    @property
    def options(self) -> dict[str, Any]:
        """The op's keyword arguments that are not operands."""
        return {name: v for name, v in self.call.kwargs.items() if not isinstance(v, Node)}

    def arguments(self, *names: str) -> list[Any]:
        """Return arguments of the op's call, with operands as they were before the op viewed them.

        Parameters
        ----------
        names : str
            The op's first parameters, in their order.
        """
        given = {**dict(zip(names, self.call.args, strict=False)), **self.call.kwargs}
        return [given[name] for name in names]


def made(node: Node) -> OpNode | None:
    """Return a node as rules see it; None for leaves and views."""
    if node.call is None or node.launch is None:
        return None
    return OpNode(node, node.call, node.launch)
