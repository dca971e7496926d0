"""Chains of elementwise ops, compiled into one kernel.

An op takes part if its WGSL has a function `apply` from values to a value, in installed packages
too. Numbers that the op was given follow the values, by their names in `Params`::

    fn apply(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> { … }
    fn apply(x: vec4<f32>, low: f32, high: f32) -> vec4<f32> { … }

The kernel loads each operand once, calls the functions in turn on values in registers, and stores
once: a chain of n ops moves two or three tensors instead of 3n. Operands broadcast. A value that
several chains read is computed in each of them, which costs less than storing a tensor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from string import Template
from typing import NamedTuple, cast

import numpy as np

from wgpu_backend.dtypes import F32
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node, ParamValue
from wgpu_backend.graph.spec import Shape, Spec, broadcast_strides, reshape
from wgpu_backend.graph.wgsl_source import Inline, Source, read
from wgpu_backend.ops.check import pad_to_4d, vec4s
from wgpu_backend.ops.elementwise.launches import wraps
from wgpu_backend.ops.op import REGISTRY, op
from wgpu_backend.ops.reference import Array, get_reference

# With the result, operands stay below the 8 storage bindings that every device has.
MAX_OPERANDS = 6
MAX_STEPS = 24
AXES = 4
_APPLY = re.compile(
    r"^fn apply\((?P<parameters>[^)]*)\) -> vec4<(?:f32|Value)> \{.*?^\}\n",
    re.MULTILINE | re.DOTALL,
)
_FUNCTIONS = re.compile(r"^fn \w+", re.MULTILINE)
_IMPORTS = re.compile(r"^// @import \S+(?: as \w+)?$", re.MULTILINE)
# How a kernel gets an operand: as the result lies, by strides, or by making it. A positive number
# is the count of values after which the operand repeats.
SAME, STRIDED, MADE = 0, -1, -2
_NUMBER = re.compile(r"(\w+): f32\b")
# Imports that the kernel has itself. All other imports of an op's file are functions that it calls.
STORE, GRID = "// @import formats/store/f32 as y", "// @import lib/index/grid"
STRIDES = "// @import lib/index/strided"
_WITH_NUMBER = "// @import lib/elementwise/unary_with_number"
_FRAMES = {"// @import lib/elementwise/unary", "// @import lib/elementwise/binary", GRID} | {
    "// @import formats/load/f32 as x",
    STORE,
}
_KERNEL = Template("""\
$imports
const WG: u32 = 64u;
const ITEMS_PER_THREAD: u32 = 1u;
struct Params { size: u32, shape: vec4<u32>, $fields }
@group(0) @binding(0) var<uniform> params: Params;
// Surplus lanes of the last thread read element zero: no index leaves a tensor.
fn inside(i: u32, strides: vec4<u32>) -> vec4<u32> {
    let lanes = vec4<u32>(i, i + 1u, i + 2u, i + 3u);
    let at = strided4(i, params.shape, strides);
    return select(vec4<u32>(0u), at, lanes < vec4<u32>(params.size));
}
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
        Name of the op.
    arguments : tuple of int
        The values it takes: operands of the chain first, then results of the steps before.
    numbers : tuple of (str, float)
        Options of the op, by name.
    """

    op: str
    arguments: tuple[int, ...]
    numbers: tuple[tuple[str, float], ...] = ()


Chain = tuple[list[Node], tuple[Step, ...]]


@op(source="// each chain brings its own", trusted=True)
def chain(
    steps: tuple[Step, ...],
    *operands: Node,
    shape: Shape | None = None,
    across: Shape | None = None,
) -> Launch:
    """Apply ops value by value, each to operands or to results of ops before it.

    Parameters
    ----------
    steps : tuple of Step
    operands : (...), f32, f16 or bf16
        Of shapes that broadcast to `across`, up to four axes of any strides.
    shape : tuple of int or None
        Of the result; None for that of the largest operand.
    across : tuple of int or None
        Shape in which operands broadcast, with as many values as the result, which it is if None.

    Returns
    -------
    Tensor of that shape, f32.
    """
    largest = max(operands, key=lambda x: (x.spec.size, len(x.spec.shape)))
    out = Spec.dense(largest.spec.shape if shape is None else shape, F32)
    across = out.shape if across is None else across
    names = [f"x{i}" for i in range(len(operands))]
    ways = tuple(choose_access(x.spec, across) for x in operands)
    return Launch(
        out,
        dict(zip(names, operands, strict=True)),
        threads=vec4s(out.size),
        params={"size": out.size, "shape": pad_to_4d(across, 1)}
        | make_params(steps, dict(zip(names, operands, strict=True)), across),
        shader=_wgsl(tuple(clear_numbers(step) for step in steps), ways),
        in_place=tuple(n for n, way in zip(names, ways, strict=True) if way == SAME),
        work=out.nbytes + sum(x.spec.nbytes for x in operands),
    )


@chain.reference
def chain_reference(
    steps: tuple[Step, ...],
    *operands: Array,
    shape: tuple[int, ...] | None = None,
    across: tuple[int, ...] | None = None,
) -> Array:
    """Call the references of the ops, one after the other."""
    values = [np.asarray(x) for x in operands]
    for step in steps:
        given = (values[a] for a in step.arguments)
        values.append(get_reference(step.op)(*given, **dict(step.numbers)))
    if shape is None:
        return values[-1]
    return np.broadcast_to(values[-1], across or shape).reshape(shape)


def choose_access(spec: Spec, shape: Shape) -> int:
    """Return how a chain of `shape` reads an operand: `SAME`, `STRIDED` or its period."""
    if spec.is_dense and spec.shape == shape:
        return SAME
    return spec.size if wraps(spec, shape) else STRIDED


def _field_name(step: int, name: str) -> str:
    """Return the name of the `Params` field for a number of a step."""
    return f"step{step}_{name}"


def clear_numbers(step: Step) -> Step:
    """Return a step with all numbers 0: shaders do not depend on them, so fewer are compiled."""
    return replace(step, numbers=tuple((name, 0.0) for name, _ in step.numbers))


@lru_cache(maxsize=256)
def _wgsl(steps: tuple[Step, ...], ways: tuple[int, ...]) -> Inline:
    """Write the kernel of a chain whose operands are read in these ways."""
    parts = make_parts(steps, ways)
    text = _KERNEL.substitute(
        imports="\n".join((*parts.loads, STORE, GRID, *parts.imports)),
        fields=", ".join(parts.fields),
        bodies=parts.bodies,
        values="\n            ".join(parts.values),
        last=parts.last,
    )
    return Inline("chain of " + ", ".join(step.op for step in steps), text)


class Parts(NamedTuple):
    """The WGSL of a chain: `loads` import operands, `imports` the functions that ops call.

    `values` are statements that make values, those of operands first; the last is the result.
    """

    loads: list[str]
    imports: list[str]
    fields: list[str]
    bodies: str
    values: list[str]
    last: str


def make_parts(steps: tuple[Step, ...], ways: tuple[int, ...]) -> Parts:
    """Write the WGSL of a chain whose operands are read in these ways."""
    functions = {step.op: _get_function(step.op) for step in steps}
    imports = {line for found in functions.values() for line in found.imports}
    read = [(i, way) for i, way in enumerate(ways) if way != MADE]
    loads = [f"// @import formats/load/f32 as x{i}" for i, _ in read]
    fields = [f"x{i}_offset: u32" for i, _ in read]
    fields += [f"x{i}_strides: vec4<u32>" for i, way in read if way == STRIDED]
    values = [f"let v{i} = {_load_expression(i, way)};" for i, way in read]
    for number, step in enumerate(steps):
        numbers = [_field_name(number, name) for name, _ in step.numbers]
        fields += [f"{name}: f32" for name in numbers]
        arguments = [f"v{a}" for a in step.arguments] + [f"params.{name}" for name in numbers]
        values.append(f"let v{len(ways) + number} = apply_{step.op}({', '.join(arguments)});")
    bodies = [
        found.text.replace("fn apply(", f"fn apply_{name}(") for name, found in functions.items()
    ]
    last = f"v{len(ways) + len(steps) - 1}"
    return Parts(loads, sorted(imports | {STRIDES}), fields, "\n".join(bodies), values, last)


def make_params(
    steps: tuple[Step, ...], operands: Mapping[str, Node], across: Shape
) -> dict[str, ParamValue]:
    """Return the parameters of a chain: strides of broadcast operands, and numbers of steps."""
    params: dict[str, ParamValue] = {
        f"{name}_strides": pad_to_4d(broadcast_strides(x.spec, across), 0)
        for name, x in operands.items()
        if choose_access(x.spec, across) == STRIDED
    }
    for number, step in enumerate(steps):
        params |= {_field_name(number, name): value for name, value in step.numbers}
    return params


def _load_expression(operand: int, way: int) -> str:
    """Return the WGSL that reads four values of an operand, from value `i` of the result on."""
    name = f"x{operand}"
    if way == STRIDED:
        place = f"inside(i, params.{name}_strides)"
        return f"{name}_gather4(vec4<u32>(params.{name}_offset) + {place})"
    return f"{name}_load4(params.{name}_offset + {'i' if way == SAME else f'i % {way}u'})"


class Function(NamedTuple):
    """The WGSL function `apply` of an op.

    Parameters
    ----------
    text : str
        Its WGSL.
    imports : tuple of str
        Import lines of the functions it calls.
    numbers : tuple of str
        Names of its parameters that are options of the op.
    """

    text: str
    imports: tuple[str, ...]
    numbers: tuple[str, ...]


def _get_function(name: str) -> Function:
    function = _parse_function(REGISTRY[name].shader)
    assert function is not None, name
    return function


@lru_cache(maxsize=256)
def _parse_function(source: Source) -> Function | None:
    """Return an op's WGSL function `apply`; None if its form is not supported."""
    text = read(source)
    found = _APPLY.search(text)
    if found is None:
        return None
    numbers = tuple(_NUMBER.findall(found["parameters"]))
    # A file with numbers has its own `Params` and `main`.
    others = set(_FUNCTIONS.findall(text)) - {"fn apply"} - ({"fn main"} if numbers else set())
    types = {p.split(":")[1].strip() for p in found["parameters"].split(",")}
    lines = [
        line
        for line in _IMPORTS.findall(text)
        if line not in _FRAMES and not line.startswith(_WITH_NUMBER)
    ]
    # A file outside the package may import its neighbours, which a chain would not find.
    alone = isinstance(source, str) or not lines
    bound = text.count("@binding") > bool(numbers)
    if others or bound or not alone or not types <= {"vec4<f32>", "vec4<Value>", "f32"}:
        return None
    # The imported loads convert every float type to f32.
    return Function(found[0].replace("vec4<Value>", "vec4<f32>"), tuple(lines), numbers)


@chain.fuses("*")
def join(node: OpNode, graph: Graph) -> Node | None:
    """Fuse an elementwise op with the elementwise ops of its operands that only chains read."""
    if not can_join(node):
        return None
    across, whole = get_across(node), as_chain(node)
    for x in whole[0]:
        maker = _find_maker(x, graph)
        first = maker and _reshape_chain(as_chain(maker), get_across(maker), x.spec.shape, graph)
        whole = (first and _prepend(first, x, *whole)) or whole
    if len(whole[1]) == len(as_chain(node)[1]):
        return _across_an_operand(node, graph)
    return graph.call(chain, whole[1], *whole[0], shape=node.spec.shape, across=across)


def _across_an_operand(node: OpNode, graph: Graph) -> Node | None:
    """Fuse an op with the op that makes its broadcast operand, in a chain of that shape."""
    whole, across = as_chain(node), get_across(node)
    for number, x in enumerate(whole[0]):
        maker = _find_maker(x, graph) if x.spec.shape == across else None
        own = maker and _reshape_chain(whole, across, get_across(maker), graph)
        longer = maker and own and _prepend(as_chain(maker), own[0][number], *own)
        if maker and longer:
            shapes = {"shape": node.spec.shape, "across": get_across(maker)}
            return graph.call(chain, longer[1], *longer[0], **shapes)
    return None


def can_join(node: OpNode) -> bool:
    """Return whether a node's op can be a step of a chain."""
    launch, shape = node.launch, node.spec.shape
    if launch.into is not None or launch.out.dtype != F32 or len(shape) > AXES:
        return False
    return node.call.op is chain or _parse_function(node.call.op.shader) is not None


def as_chain(node: OpNode) -> Chain:
    """Return the operands and steps of the chain that a node is by itself."""
    operands = list(node.operands.values())
    if node.call.op is chain:
        return operands, node.call.args[0]
    params = node.launch.params
    numbers = [(name, cast("float", params[name])) for name in _get_function(node.op).numbers]
    return operands, (Step(node.op, tuple(range(len(operands))), tuple(numbers)),)


def get_across(node: OpNode) -> Shape:
    """Return the shape in which a node's operands broadcast."""
    return node.options.get("across") or node.spec.shape


def _find_maker(x: Node, graph: Graph) -> OpNode | None:
    """Find the op that makes an operand, if it can join a chain and only chains read it."""
    maker = graph.producer(x)
    reads = partial(_reads_whole, x, graph)
    if maker is None or not can_join(maker) or not graph.serves_only(x, reads):
        return None
    return maker


def _reshape_chain(made: Chain, shape: Shape, wanted: Shape, graph: Graph) -> Chain | None:
    """Return a chain over another shape, if its operands can be viewed in it; else None."""
    seen = [_in_shape(y, shape, wanted, graph) for y in made[0]]
    found = [y for y in seen if y is not None]
    return (found, made[1]) if len(found) == len(seen) else None


def _reads_whole(x: Node, graph: Graph, reader: OpNode) -> bool:
    own = [y for y in reader.operands.values() if y.storage is x.storage]
    return can_join(reader) and all(graph.producer(y) is not None for y in own)


def _in_shape(x: Node, shape: Shape, wanted: Shape, graph: Graph) -> Node | None:
    """View an operand so that the chain's result has shape `wanted`; None if that needs a copy."""
    if shape == wanted:
        return x
    if x.spec.shape == shape:
        spec = reshape(x.spec, wanted)
        return None if spec is None else graph.view(x, spec)
    # A row or a number repeats in either shape; leading axes would only get in the way.
    last = x.spec.shape[-1:]
    alone = x.spec.size == math.prod(last) and last in ((), (1,), shape[-1:])
    if not alone or shape[-1:] != wanted[-1:]:
        return None
    return graph.view(x, Spec(last, x.spec.dtype, x.spec.strides[-1:], x.spec.offset))


def _prepend(maker: Chain, x: Node, operands: list[Node], steps: tuple[Step, ...]) -> Chain | None:
    """Return a chain that begins with the ops that make its operand `x`; equal steps appear once.

    None if it would have too many operands or steps.
    """
    together: list[Node] = []
    # Operands are counted from -1 downwards, and results from 0 on.
    made: list[Step] = []

    def place(y: Node) -> int:
        if not any(_same(y, z) for z in together):
            together.append(y)
        return -1 - next(i for i, z in enumerate(together) if _same(y, z))

    def run(values: list[int], steps: tuple[Step, ...]) -> int:
        for step in steps:
            new = replace(step, arguments=tuple(values[a] for a in step.arguments))
            if new not in made:
                made.append(new)
            values.append(made.index(new))
        return values[-1]

    result = run([place(y) for y in maker[0]], maker[1])
    last = run([result if _same(x, y) else place(y) for y in operands], steps)
    # Of equal steps the last may have come early; steps after it have no reader.
    made = made[: last + 1]
    if len(together) > MAX_OPERANDS or len(made) > MAX_STEPS:
        return None
    return together, tuple(
        replace(s, arguments=tuple(len(together) + a if a >= 0 else -1 - a for a in s.arguments))
        for s in made
    )


def _same(x: Node, y: Node) -> bool:
    return x.storage is y.storage and x.spec == y.spec
