"""Ops that work value by value, one after the other, compiled into one kernel.

Any op takes part whose WGSL has a function `apply` from values to a value, that of an installed
package too::

    fn apply(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> { … }

The kernel loads each operand once, calls the functions in turn on what is in registers, and stores
once: a chain of n ops moves two or three tensors instead of 3n.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from string import Template

from wgpu_backend.dtypes import F32
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec
from wgpu_backend.ops.check import vec4s
from wgpu_backend.ops.elementwise.arithmetic import wraps
from wgpu_backend.ops.op import REGISTRY, op
from wgpu_backend.wgsl_source import Inline, Source, read

MAX_OPERANDS = 6  # of the 8 storage bindings that every device has, with the result
MAX_STEPS = 24
_APPLY = re.compile(
    r"^fn apply\((?P<parameters>[^)]*)\) -> vec4<(?:f32|Value)> \{.*?^\}\n",
    re.MULTILINE | re.DOTALL,
)
_FUNCTIONS = re.compile(r"^fn \w+", re.MULTILINE)
_IMPORTS = re.compile(r"^// @import \S+$", re.MULTILINE)
# What the kernel has itself; the rest of what an op's file imports are functions it calls.
STORE, GRID = "// @import formats/store/f32 as y", "// @import lib/index/grid"
_FRAMES = {"// @import lib/elementwise/unary", "// @import lib/elementwise/binary", GRID}
_KERNEL = Template("""\
$imports
const WG: u32 = 64u;
const ITEMS_PER_THREAD: u32 = 1u;
struct Params { size: u32, $offsets }
@group(0) @binding(0) var<uniform> params: Params;
$bodies
@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var item = 0u; item < ITEMS_PER_THREAD; item++) {
        let i = 4u * item_index(id, groups, WG, ITEMS_PER_THREAD, item);
        if i < params.size {
            $values
            y_store4(i, $last);
        }
    }
}
""")


@dataclass(frozen=True, slots=True)
class Step:
    """One op of a chain.

    Parameters
    ----------
    op : str
    arguments : tuple of int
        Which values it takes: operands of the chain first, then results of the steps before.
    """

    op: str
    arguments: tuple[int, ...]


@op(source="// each chain brings its own", trusted=True)
def chain(steps: tuple[Step, ...], *operands: Node) -> Launch:
    """Apply ops value by value, each to operands or to results of ops before it.

    Parameters
    ----------
    steps : tuple of Step
    operands : (...), f32, f16 or bf16
        Dense, of the shape of the result, or rows that repeat in it.

    Returns
    -------
    Tensor of the shape of the largest operand, f32.
    """
    largest = max(operands, key=lambda x: (x.spec.size, len(x.spec.shape)))
    out = Spec.dense(largest.spec.shape, F32)
    names = [f"x{i}" for i in range(len(operands))]
    repeats = tuple(0 if x.spec.shape == out.shape else x.spec.size for x in operands)
    return Launch(
        out,
        dict(zip(names, operands, strict=True)),
        threads=vec4s(out.size),
        params={"size": out.size},
        shader=_wgsl(steps, repeats),
        in_place=tuple(n for n, every in zip(names, repeats, strict=True) if not every),
        work=out.nbytes + sum(x.spec.nbytes for x in operands),
    )


@lru_cache(maxsize=256)
def _wgsl(steps: tuple[Step, ...], repeats: tuple[int, ...]) -> Inline:
    """Kernel of a chain; `repeats` tells after how many values an operand begins anew."""
    functions = {step.op: _known(step.op) for step in steps}
    imports = sorted({line for _, lines in functions.values() for line in lines})
    loads = [f"// @import formats/load/f32 as x{i}" for i in range(len(repeats))]
    offsets = ", ".join(f"x{i}_offset: u32" for i in range(len(repeats)))
    at = [f"i % {every}u" if every else "i" for every in repeats]
    values = [f"let v{i} = x{i}_load4(params.x{i}_offset + {a});" for i, a in enumerate(at)]
    for number, step in enumerate(steps, len(repeats)):
        arguments = ", ".join(f"v{a}" for a in step.arguments)
        values.append(f"let v{number} = apply_{step.op}({arguments});")
    bodies = [
        text.replace("fn apply(", f"fn apply_{name}(") for name, (text, _) in functions.items()
    ]
    text = _KERNEL.substitute(
        imports="\n".join((*loads, STORE, GRID, *imports)),
        offsets=offsets,
        bodies="\n".join(bodies),
        values="\n            ".join(values),
        last=f"v{len(repeats) + len(steps) - 1}",
    )
    return Inline("chain of " + ", ".join(step.op for step in steps), text)


def _known(name: str) -> tuple[str, tuple[str, ...]]:
    function = _function(REGISTRY[name].shader)
    assert function is not None, name
    return function


@lru_cache(maxsize=256)
def _function(source: Source) -> tuple[str, tuple[str, ...]] | None:
    """Text of an op's `apply`, and what it imports; None where it has none of the right form."""
    text = read(source)
    found = _APPLY.search(text)
    if found is None or len(_FUNCTIONS.findall(text)) > 1 or "@binding" in text:
        return None
    types = {p.split(":")[1].strip() for p in found["parameters"].split(",")}
    imports = tuple(line for line in _IMPORTS.findall(text) if line not in _FRAMES)
    # A file elsewhere may import what lies beside it, which a chain would not find.
    alone = isinstance(source, str) or not imports
    if not alone or not types <= {"vec4<f32>", "vec4<Value>"}:
        return None
    # A chain computes with f32.
    return found[0].replace("vec4<Value>", "vec4<f32>"), imports


@chain.fuses("*")
def joined(node: OpNode, graph: Graph) -> Node | None:
    """An op value by value, and those of its operands that are made so for it alone."""
    if not _can_join(node):
        return None
    operands, steps = _as_chain(node)
    makers = [graph.single_use_producer(x) for x in operands]
    shape = node.spec.shape
    taken = [m for m in makers if m is not None and m.spec.shape == shape and _can_join(m)]
    for maker in taken:
        operands, steps = _with(maker, operands, steps)
    if not taken or len(operands) > MAX_OPERANDS or len(steps) > MAX_STEPS:
        return None
    # A chain has the shape of an operand; broadcasting may have made one that none has.
    if all(x.spec.shape != shape for x in operands):
        return None
    return graph.call(chain, steps, *operands)


def _can_join(node: OpNode) -> bool:
    """Whether a node's op can be a step of a chain."""
    out = node.launch.out
    if node.launch.into is not None or out.dtype != F32:
        return False
    known = node.call.op is chain or _function(node.call.op.shader) is not None
    return known and all(_reads(x.spec, out.shape) for x in node.operands.values())


def _reads(spec: Spec, shape: Shape) -> bool:
    return (spec.is_dense and spec.shape == shape) or wraps(spec, shape)


def _as_chain(node: OpNode) -> tuple[list[Node], tuple[Step, ...]]:
    """Operands and steps of the chain that a node is by itself."""
    operands = list(node.operands.values())
    if node.call.op is chain:
        return operands, node.call.args[0]
    return operands, (Step(node.op, tuple(range(len(operands)))),)


def _with(
    maker: OpNode, operands: list[Node], steps: tuple[Step, ...]
) -> tuple[list[Node], tuple[Step, ...]]:
    """Chain in which the op that makes an operand comes first."""
    own, first = _as_chain(maker)
    product = maker.node.storage
    rest = [x for x in operands if x.storage is not product]
    together: list[Node] = []
    for x in [*own, *rest]:
        if not any(_same(x, y) for y in together):
            together.append(x)
    place = [next(i for i, y in enumerate(together) if _same(x, y)) for x in [*own, *rest]]
    made = len(together) + len(first) - 1
    of_first = [*place[: len(own)], *range(len(together), len(together) + len(first))]
    left = iter(place[len(own) :])
    of_second = [made if x.storage is product else next(left) for x in operands]
    of_second += range(made + 1, made + 1 + len(steps))
    return together, (
        *(Step(s.op, tuple(of_first[a] for a in s.arguments)) for s in first),
        *(Step(s.op, tuple(of_second[a] for a in s.arguments)) for s in steps),
    )


def _same(x: Node, y: Node) -> bool:
    return x.storage is y.storage and x.spec == y.spec
