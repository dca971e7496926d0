"""Fusion: rules that replace an op, and the ops that feed it, by one op with the same result.

A rule is defined next to the op it makes, see `wgpu_backend.ops.op.Op.fuses`. It is tried on
each node of its ops, and returns a replacement or None::

    @linear.fuses("add", name="linear_add")
    def sum_in_the_product(node: OpNode, graph: Graph) -> Node | None:
        product = graph.single_use_producer(node.operands["a"], "linear")
        …
        return graph.call(linear, weight, x, node.operands["b"])

Nodes that only the replaced ones needed are dropped, and rules are tried again until none matches.
A rule only sees the graph and the device's `Capabilities`. A replacement is ignored if the device
has no kernel for it, or only one of last resort.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_not
from typing import Any, Protocol

from wgpu_backend.dtypes import DType
from wgpu_backend.errors import BackendError
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.node import (
    Call,
    Launch,
    Node,
    Operation,
    Storage,
    contains_node,
    get_operands,
    get_reads,
    get_writes,
)
from wgpu_backend.graph.spec import Spec

Runs = Callable[[Operation, Launch, Capabilities], bool]
# Returns the rules that compute wrong values, of names of rules and ops.
FindWrong = Callable[[Collection[str]], Collection[str]]
# Stands for every op: such rules are tried after those for the op itself.
ANY = "*"
# Rounds of rules that feed each other. Today's rules need four.
ROUNDS = 8


def _anywhere(op: Operation, launch: Launch, capabilities: Capabilities) -> bool:
    """Return True: the default where the device's kernels are not known."""
    return True


class Callee(Protocol):
    """An op that a rule may call."""

    def add_to(self, builder: Any, /, *args: Any, **kwargs: Any) -> Node:  # noqa: ANN401
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
        """Return arguments of the op's call; the operands are those before the op viewed them.

        Parameters
        ----------
        names : str
            The op's first parameters, in their order.
        """
        given = {**dict(zip(names, self.call.args, strict=False)), **self.call.kwargs}
        return [given[name] for name in names]


def as_op_node(node: Node) -> OpNode | None:
    """Return a node as rules see it; None for leaves and views."""
    if node.call is None or node.launch is None:
        return None
    return OpNode(node, node.call, node.launch)


@dataclass(frozen=True, slots=True)
class Rule:
    """A fusion rule: it replaces an op, and ops that feed it, by one other op.

    Parameters
    ----------
    name : str
        By which it is switched off: that of the op it makes, unless several rules make one.
    replace : callable
        From a node and its graph to the node that replaces it, made by ``graph.call``; or None.
    exact : bool
        The result is the same but for the order of sums. Other rules are only used where the
        caller allows activations to be rounded.
    coarse : bool
        To eight bits a value and no more, which changes some answers (`benchmarks/quality.py`
        measures that), so the caller has to ask for it.
    """

    name: str
    replace: Callable[[OpNode, Graph], Node | None]
    exact: bool = True
    coarse: bool = False


class Graph:
    """A schedule while rules rewrite it, with the writers and readers of each storage.

    Parameters
    ----------
    nodes : sequence of Node
        From `schedule`.
    outputs : iterable of Node
        Their values are wanted, so no rule may do away with them.
    allocate : callable
        Storage for the result of a new node.
    runs : callable
        Whether a device has a kernel for a launch of an op.

    Attributes
    ----------
    applied : set of str
        Names of the rules that replaced a node.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        outputs: Iterable[Node],
        capabilities: Capabilities,
        allocate: Callable[[Spec], Storage],
        runs: Runs,
    ) -> None:
        self.capabilities = capabilities
        self._runs = runs
        self.nodes = list(nodes)
        self.applied: set[str] = set()
        self._wanted = {node.storage for node in outputs}
        self._allocate = allocate
        self._fresh: list[Node] = []
        self._absorbed: list[Node] = []
        self._shared: dict[tuple[Any, ...], Node] = {}
        self._writers: dict[Storage, list[Node]] = {}
        # A node stands here once for each operand that reads the storage.
        self._readers: defaultdict[Storage, list[Node]] = defaultdict(list)
        for node in self.nodes:
            self._count(node, 1)

    # For rules.

    def producer(self, operand: Node, *ops: str) -> OpNode | None:
        """Return the node that writes every value of `operand`, if one of these ops made it.

        None also where several ops write that storage, or `operand` is a part of it or strided.
        """
        writers = self._writers.get(operand.storage, ())
        if len(writers) != 1 or operand.storage.kind != "intermediate":
            return None
        found = as_op_node(writers[0])
        # A part of the result, or a strided view, would need the values that a replacement no
        # longer stores.
        whole = operand.spec.is_dense and not operand.spec.offset
        if found is None or not whole or operand.spec.size != found.spec.size:
            return None
        return found if not ops or found.op in ops else None

    def single_use_producer(self, operand: Node, *ops: str) -> OpNode | None:
        """Return `producer` if `operand` is the only reader of its result."""
        if operand.storage in self._wanted or len(self._readers[operand.storage]) != 1:
            return None
        return self.producer(operand, *ops)

    def read_by(self, storage: Storage, *readers: OpNode) -> bool:
        """Return whether these nodes are the only readers of a storage."""
        own = [o.storage for m in readers for o in get_operands(m.node)].count(storage)
        # Readers count once for each operand, so an op that reads a storage twice is counted twice
        # on both sides.
        return len(self._readers[storage]) == own and storage not in self._wanted

    def serves_only(self, operand: Node, takes: Callable[[OpNode], bool]) -> bool:
        """Return whether an operand is not an output and `takes` accepts all its readers."""
        readers = [as_op_node(node) for node in self._readers[operand.storage]]
        wanted = operand.storage in self._wanted
        return not wanted and all(reader is not None and takes(reader) for reader in readers)

    def write(self, state: Node, op: str) -> OpNode | None:
        """Return the only write into the storage of `state`, if this op made it."""
        writers = self._writers.get(state.storage, ())
        # What took the place of a write is another node, and has run before the reader.
        if len(writers) != 1 or not (writers[0] is state or contains_node(writers[0], self.nodes)):
            return None
        found = as_op_node(writers[0])
        return found if found and found.op == op else None

    def absorb(self, write: OpNode, reader: OpNode) -> bool:
        """Remove a write into a state, because the replacement does it.

        Parameters
        ----------
        write : OpNode
            From `write`.
        reader : OpNode
            The node to be replaced, the first that reads the state; layers that share a cache read
            it later.

        Returns
        -------
        bool
            False if another node reads or writes that state before; then nothing has changed.
        """
        if not (
            self.read_by(write.node.storage, write, reader) or self._is_first_reader(write, reader)
        ):
            return False
        self._absorbed.append(write.node)
        return True

    def can_defer_write(self, maker: OpNode, result: Node, *readers: OpNode) -> bool:
        """Remove the writer of `result`, because a replacement writes it later, if that is safe.

        Parameters
        ----------
        maker : OpNode
            Writes `result`: its own, or besides its own.
        readers : OpNode
            Replaced nodes that read the maker's own result, if that is another, or `result`.

        Returns
        -------
        bool
            False if another node reads either, or reads it too early; then nothing has changed.
        """
        own, other = maker.node.storage, result.storage
        reads = [o.storage for m in readers for o in get_operands(m.node)].count(own)
        kept = own is not other and (own in self._wanted or len(self._readers[own]) != reads)
        gone = [m.node for m in (maker, *readers)]
        if kept or any(other in get_reads(n) and not contains_node(n, gone) for n in self.nodes):
            return False
        self._absorbed.append(maker.node)
        return True

    def call(self, op: Callee, *args: Any, **kwargs: Any) -> Node:  # noqa: ANN401
        """Call an op and return its result as a new node of this graph."""
        return op.add_to(self, *args, **kwargs)

    def shared(self, op: Callee, operand: Node, **kwargs: Any) -> Node:  # noqa: ANN401
        """Call an op as `call`; equal calls share one node."""
        # Views of the same bytes are equal operands, whichever node made them.
        key = (op, operand.storage, operand.spec, *sorted(kwargs.items()))
        known = self._shared.get(key)
        # A state may have been written between the two uses, so its values may differ.
        if known is None or self._changes(operand.storage) or not self._comes_before(known):
            known = self._shared[key] = self.call(op, operand, **kwargs)
        return known

    def is_shared(self, op: Callee, operand: Node, **kwargs: Any) -> bool:  # noqa: ANN401
        """Return whether `shared` already holds a node for this op, operand and options."""
        return (op, operand.storage, operand.spec, *sorted(kwargs.items())) in self._shared

    # What ops call: see `wgpu_backend.graph.node.Builder`.

    def add(self, call: Call, launch: Launch) -> Node:
        """Return a node for the result of an op."""
        storage = launch.into.storage if launch.into is not None else self._allocate(launch.out)
        node = Node(launch.out, storage, builder=self, call=call, launch=launch)
        self._fresh.append(node)
        return node

    def view(self, source: Node, spec: Spec) -> Node:
        """Return a node that looks at the storage of another."""
        return Node(spec, source.storage, builder=self, source=source)

    def constant(self, data: bytes, dtype: DType, shape: Sequence[int]) -> Node:
        """Return a node with values that are known now."""
        spec = Spec.dense(shape, dtype)
        return Node(spec, Storage(spec.nbytes, "input", "", data), builder=self)

    # For `fuse_nodes`.

    def rewrite(self, rules: Mapping[str, Sequence[Rule]]) -> bool:
        """Try every rule once on every node; return whether any matched."""
        before = self.nodes
        self.nodes = list[Node]()
        for node in before:
            answer = self._answer(node, rules)
            if answer is None:
                self.nodes.append(node)
            else:
                self._replace([node, *self._absorbed], answer)
        # By identity: `==` would compare the values of tensors.
        changed = len(self.nodes) != len(before) or any(map(is_not, self.nodes, before))
        self._drop_dead()
        return changed

    def forget(self) -> None:
        """Drop all nodes: they refer to their graph, and would keep it alive in a cycle."""
        self.nodes = []
        self._fresh, self._absorbed = [], []
        for known in (self._shared, self._writers, self._readers):
            known.clear()

    def _answer(self, node: Node, rules: Mapping[str, Sequence[Rule]]) -> list[Node] | None:
        """Return the nodes that replace a node, or None if no rule matches."""
        asked = as_op_node(node)
        if asked is None:
            return None
        for rule in (*rules.get(asked.op, ()), *rules.get(ANY, ())):
            self._fresh, self._absorbed = [], []
            new = rule.replace(asked, self)
            if new is not None and all(self._fits(n, node) for n in self._fresh):
                self.applied.add(rule.name)
                return [
                    *(n for n in self._fresh if n is not new),
                    _substitute(node, new, rule.name),
                ]
        return None

    def _fits(self, new: Node, old: Node) -> bool:
        """Return whether the device has a kernel for `new`, and `new` may run in place of `old`."""
        found = as_op_node(new)
        has_kernel = found is None or self._runs(found.call.op, found.launch, self.capabilities)
        return has_kernel and self._may_wait(new, old)

    def _may_wait(self, new: Node, old: Node) -> bool:
        """Return whether `new` still reads the same values when it runs in the place of `old`."""
        there = get_operands(old)
        return all(contains_node(o, there) or self._is_unchanged(o) for o in get_operands(new))

    def _is_unchanged(self, operand: Node) -> bool:
        """Return whether an operand was not written since it was last read."""
        if not self._changes(operand.storage):
            return True
        for node in reversed(self.nodes):
            if not contains_node(node, self._absorbed) and operand.storage in get_writes(node):
                return False
            if contains_node(operand, get_operands(node)):
                return True
        return False

    def _is_first_reader(self, write: OpNode, reader: OpNode) -> bool:
        """Return whether a node is the first to read a state that another wrote."""
        state = write.node.storage
        if state.kind != "state" or state in self._wanted:
            return False
        own = (write.node, reader.node)
        return not any(
            state in (*get_reads(n), *get_writes(n))
            for n in self.nodes
            if not contains_node(n, own)
        )

    def _comes_before(self, node: Node) -> bool:
        """Return whether a node, or its replacement, runs before the node being matched."""
        before = (*reversed(self.nodes), *self._fresh)
        return any(n.storage is node.storage for n in before)

    def _changes(self, storage: Storage) -> bool:
        return storage.kind == "state" or len(self._writers.get(storage, ())) > 1

    def _replace(self, old: Sequence[Node], new: Sequence[Node]) -> None:
        self.nodes = (
            [n for n in self.nodes if not contains_node(n, old)] if len(old) > 1 else self.nodes
        )
        for node in old:
            self._count(node, -1)
        for node in new:
            self._count(node, 1)
        self.nodes += new

    def _count(self, node: Node, sign: int) -> None:
        """Add a node to the readers and writers (sign 1), or remove it (-1)."""
        writers = self._writers.setdefault(node.storage, [])
        for nodes in (writers, *(self._readers[operand.storage] for operand in get_operands(node))):
            if sign > 0:
                nodes.append(node)
            else:
                del nodes[next(i for i, n in enumerate(nodes) if n is node)]

    def _drop_dead(self) -> None:
        """Keep the nodes that outputs and lasting storages need."""
        needed = set(self._wanted)
        kept: list[Node] = []
        for node in reversed(self.nodes):
            written = get_writes(node)
            if any(s in needed or s.kind != "intermediate" for s in written):
                kept.append(node)
                needed.update(o.storage for o in get_operands(node))
            else:
                self._count(node, -1)
        self.nodes = kept[::-1]


def _substitute(node: Node, new: Node, rule: str) -> Node:
    """Return `new` as a replacement of `node`, which writes into the storage of `node`."""
    if new.spec.shape != node.spec.shape or new.spec.dtype != node.spec.dtype:
        raise BackendError(
            f"fusion {rule}: it makes {new.spec.shape} {new.spec.dtype} of "
            f"{node.spec.shape} {node.spec.dtype}, needs the same"
        )
    return Node(node.spec, node.storage, call=new.call, launch=new.launch)


def fuse_nodes(
    nodes: Sequence[Node],
    outputs: Iterable[Node],
    rules: Mapping[str, Sequence[Rule]],
    capabilities: Capabilities,
    allocate: Callable[[Spec], Storage],
    runs: Runs = _anywhere,
    find_wrong: FindWrong | None = None,
) -> list[Node]:
    """Return fewer nodes that give the same outputs.

    Parameters
    ----------
    nodes : sequence of Node
        From `schedule`; they are not changed.
    rules : mapping of str to sequence of Rule
        By the name of the op they are asked for.
    allocate : callable
        Storage for the result of a new node.
    runs : callable
        Whether a device has a kernel for a launch of an op: rules make no others.
    find_wrong : callable or None
        Called with the names of the rules that applied and of the ops that are left. The rules
        that it returns are not used.

    Returns
    -------
    list of Node
        In an order in which they may run. A replacement writes the storage of the node it
        replaces, so what reads that needs no change.
    """
    outputs, allowed = list(outputs), rules
    while True:
        graph = Graph(nodes, outputs, capabilities, allocate, runs)
        try:
            for _ in range(ROUNDS):
                if not graph.rewrite(allowed):
                    break
            fused, applied = graph.nodes, graph.applied
        finally:
            # Also after an error: nodes keep storages with device memory.
            graph.forget()
        if find_wrong is None:
            return fused
        ops = {node.call.op.name for node in fused if node.call is not None}
        wrong = applied & set(find_wrong(applied | ops))
        if not wrong:
            return fused
        allowed = _without(allowed, wrong)


def _without(
    rules: Mapping[str, Sequence[Rule]], names: Collection[str]
) -> Mapping[str, Sequence[Rule]]:
    return {op: [rule for rule in own if rule.name not in names] for op, own in rules.items()}
