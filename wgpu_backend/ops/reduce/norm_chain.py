"""A norm of rows and the elementwise ops that follow it, compiled into one kernel.

Ops after a norm are often small: a gate, a factor, a residual. The threads that normalise a row
have its values in registers, so these ops need no further dispatch. See
`wgpu_backend.ops.elementwise.fusion` for the ops that can follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from string import Template
from typing import Any

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec
from wgpu_backend.graph.wgsl_source import Inline
from wgpu_backend.ops.check import grid_for, pad_to_4d, require, row_count
from wgpu_backend.ops.elementwise.fusion import (
    AXES,
    MADE,
    MAX_STEPS,
    SAME,
    Step,
    as_chain,
    can_join,
    chain_reference,
    choose_access,
    clear_numbers,
    get_across,
    make_params,
    make_parts,
)
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reduce.norm import in_vec4s, rms_norm_reference
from wgpu_backend.ops.reference import Array, get_reference

NAME = "norm_chain"
NORMS = ("rms_norm", "layer_norm")
# Of the 8 storage bindings: rows, weight, bias and the result take the others.
MOST_OPERANDS = 4
_MEAN = """\
    for (var i = lane; i < vec4s; i += width) {
        mean += dot(x_load4(start + i), vec4<f32>(1.0));
    }
    mean = row_reduce_sum(mean, lane) / f32(params.cols);
"""
_ALSO = Template("""\
    sum = 0.0;
    for (var i = lane; i < vec4s; i += width) {
        let values = ${x}_load4(params.${x}_offset + row * params.cols + 4u * i);
        sum += dot(values, values);
    }
    let also = 1.0 / sqrt(row_reduce_sum(sum, lane) / f32(params.cols) + params.eps);
""")
_KERNEL = Template("""\
$imports
// @import formats/vec4/f32 as x
// @import lib/reduce/each_row
// @import lib/index/row_start
struct Params {
    rows: u32, cols: u32, eps: f32, x_offset: u32, x_shape: vec4<u32>, x_strides: vec4<u32>,
    shape: vec4<u32>, $fields
}
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
fn inside(i: u32, strides: vec4<u32>) -> vec4<u32> {
    return strided4(i, params.shape, strides);
}
$bodies
fn compute_row(row: u32, lane: u32, width: u32) {
    let vec4s = params.cols / 4u;
    let start = (params.x_offset + row_start(row)) / 4u;
    var mean = 0.0;
$mean
    var sum = 0.0;
    for (var i = lane; i < vec4s; i += width) {
        let values = x_load4(start + i) - mean;
        sum += dot(values, values);
    }
    let inverse = 1.0 / sqrt(row_reduce_sum(sum, lane) / f32(params.cols) + params.eps);
$also
    for (var at = lane; at < vec4s; at += width) {
        let i = row * params.cols + 4u * at;
        var v0 = (x_load4(start + at) - mean) * inverse;
        $scaled
        $values
        y[i / 4u] = $last;
    }
}
""")


@op(source="// each chain brings its own", trusted=True)
def norm_chain(
    x: Node,
    steps: tuple[Step, ...],
    *operands: Node,
    norm: str,
    eps: float,
    weight: Node | None = None,
    bias: Node | None = None,
    also: int = 0,
    also_weight: Node | None = None,
    shape: Shape | None = None,
    across: Shape | None = None,
) -> Launch:
    """Normalise rows, then apply elementwise ops to them and to other operands.

    Parameters
    ----------
    x : (..., cols), f32, f16 or bf16
        As for `rms_norm`; rows are whole vectors of four, at a multiple of four.
    steps : tuple of Step
        Of values 0, which the norm gives, then operands, then results of the steps before.
    operands : (...), f32, f16 or bf16
        Of shapes that broadcast to `across`; at most four.
    norm : str
        ``rms_norm`` or ``layer_norm``.
    weight, bias : (cols,) or None
        Of the norm.
    also : int
        Number of an operand, from 1 on, that goes through an `rms_norm` of the same epsilon before:
        f32, dense, with as many values as `x`. 0 for none.
    also_weight : (cols,) or None
        Of that.
    shape : tuple of int or None
        Of the result; None for that of `x`.
    across : tuple of int or None
        Shape in which operands broadcast, with as many values as the result, which it is if None.

    Returns
    -------
    Tensor of that shape, f32.

    Raises
    ------
    ShapeError
        Rows are no whole vectors, or there are more operands.
    """
    vectors = {"weight": weight, "bias": bias, "also_weight": also_weight}
    given = {name: vector for name, vector in vectors.items() if vector is not None}
    second = not also or (norm == "rms_norm" and _fits_beside(operands[also - 1], x))
    require(
        fits(x, *given.values()) and second and len(operands) <= MOST_OPERANDS,
        ShapeError,
        f"{NAME}: rows are {x.spec.shape} with strides {x.spec.strides} and {len(operands)} "
        f"operands, needs whole vectors of four and {MOST_OPERANDS} operands at most",
    )
    out = Spec.dense(x.spec.shape if shape is None else shape, F32)
    across = out.shape if across is None else across
    named = {f"x{i}": operand for i, operand in enumerate(operands, 1)}
    ways = tuple(
        SAME if i == also else choose_access(operand.spec, across)
        for i, operand in enumerate(operands, 1)
    )
    (*_, cols), rows = x.spec.shape, row_count(x.spec)
    plain = tuple(clear_numbers(step) for step in steps)
    return Launch(
        out,
        {"x": x, **given, **named},
        groups=grid_for(rows),
        shader=_wgsl(plain, (MADE, *ways), tuple(given), norm == "layer_norm", also),
        params={
            "rows": rows,
            "cols": cols,
            "eps": eps,
            "x_shape": pad_to_4d(x.spec.shape, 1),
            "x_strides": pad_to_4d(x.spec.strides, 0),
            "shape": pad_to_4d(across, 1),
            **make_params(steps, named, across),
        },
        work=2 * x.spec.nbytes + out.nbytes + sum(o.spec.nbytes for o in operands),
    )


@norm_chain.reference
def norm_chain_reference(
    x: Array,
    steps: tuple[Step, ...],
    *operands: Array,
    norm: str,
    eps: float,
    weight: Array | None = None,
    bias: Array | None = None,
    also: int = 0,
    also_weight: Array | None = None,
    shape: tuple[int, ...] | None = None,
    across: tuple[int, ...] | None = None,
) -> Array:
    """Apply the reference of the norm, then those of the ops after it."""
    vectors = [v for v in (weight, bias) if v is not None]
    rows = get_reference(norm)(x, *vectors, eps=eps)
    shape = x.shape if shape is None else shape
    given = list(operands)
    if also:
        given[also - 1] = rms_norm_reference(given[also - 1], also_weight, eps=eps).reshape(
            across or shape
        )
    return chain_reference(steps, rows.reshape(across or shape), *given, shape=shape, across=across)


def fits(x: Node, *vectors: Node) -> bool:
    """Return whether rows, and vectors of their length, are whole vectors of four."""
    spec = x.spec
    if not 0 < len(spec.shape) <= AXES or spec.strides[-1] != 1:
        return False
    aligned = not any(stride % 4 for stride in spec.strides[:-1])
    return aligned and in_vec4s(spec.shape[-1], x, *vectors)


def _fits_beside(other: Node, x: Node) -> bool:
    """Return whether an operand has dense rows, as many and as long as the norm's."""
    spec = other.spec
    same = spec.shape[-1:] == x.spec.shape[-1:] and spec.size == x.spec.size
    return same and spec.dtype == F32 and spec.is_dense and not spec.offset % 4


@lru_cache(maxsize=256)
def _wgsl(
    steps: tuple[Step, ...],
    ways: tuple[int, ...],
    given: tuple[str, ...],
    centred: bool,
    also: int,
) -> Inline:
    """Write the kernel of a norm and a chain, with operands read in these ways."""
    parts = make_parts(steps, ways)
    vectors = {n: f"{n}_load4(params.{n}_offset + 4u * at)" for n in given}
    scaled = {"weight": f"v0 *= {vectors.get('weight')};", "bias": f"v0 += {vectors.get('bias')};"}
    values = list(parts.values)
    if also:
        factor = f"also * {vectors.get('also_weight', '1.0')}"
        # The operand is scaled where it is loaded, before any step reads it.
        values[also - 1] = values[also - 1].replace(";", f" * {factor};")
    text = _KERNEL.substitute(
        imports="\n".join(
            (
                *parts.loads,
                *(f"// @import formats/load/f32 as {name}" for name in given),
                *parts.imports,
            )
        ),
        fields=", ".join([*parts.fields, *(f"{name}_offset: u32" for name in given)]),
        bodies=parts.bodies,
        mean=_MEAN if centred else "",
        also=_ALSO.substitute(x=f"x{also}") if also else "",
        scaled="\n        ".join(line for name, line in scaled.items() if name in given),
        values="\n        ".join(values),
        last=parts.last,
    )
    return Inline("norm and chain of " + ", ".join(step.op for step in steps), text)


@norm_chain.fuses("*")
def values_behind_a_norm(node: OpNode, graph: Graph) -> Node | None:
    """Fuse an elementwise op, or a chain of them, with a norm that nothing else reads."""
    if not can_join(node):
        return None
    operands, steps = as_chain(node)
    across = get_across(node)
    for number, normed in enumerate(operands):
        norm = graph.producer(normed, *NORMS, "rms_norm_add", NAME)
        alone = norm and graph.read_by(normed.storage, node) and _once(normed, operands)
        if norm is None or not alone or choose_access(normed.spec, across) != SAME:
            continue
        others = [x for i, x in enumerate(operands) if i != number]
        given = _norm_steps(norm, across)
        if given is None or len(given[1]) + len(others) > MOST_OPERANDS:
            continue
        first, before, how = given
        if len(first) + len(steps) > MAX_STEPS:
            continue
        counts = len(before), len(others), len(first)
        joined = (*_renumber_before(first, *counts), *_renumber_after(steps, number, *counts))
        shapes: dict[str, Any] = {"shape": node.spec.shape, "across": across}
        x = norm.operands["x"]
        return graph.call(norm_chain, x, joined, *before, *others, **how, **shapes)
    return None


def _once(x: Node, operands: Sequence[Node]) -> bool:
    """Return whether an operand's storage occurs once among the operands."""
    return sum(other.storage is x.storage for other in operands) == 1


def _norm_steps(
    norm: OpNode, across: Shape
) -> tuple[tuple[Step, ...], list[Node], dict[str, Any]] | None:
    """Return the steps after a norm, their operands, and its arguments; None if they do not fit."""
    weights = {"weight": "WEIGHTED", "bias": "BIASED"}
    if norm.op == NAME:
        given = ("norm", "eps", *weights, "also", "also_weight")
        how = {n: norm.call.kwargs[n] for n in given if n in norm.call.kwargs}
        before = list(norm.call.args[2:])
        alike = get_across(norm) == across
        # Operands of a chain broadcast in one shape, so both must have the same.
        return (norm.call.args[1], before, how) if alike else None
    choices = norm.launch.choices
    own = {n: norm.operands[n] for n, chosen in weights.items() if choices.get(chosen)}
    if not fits(norm.operands["x"], *own.values()):
        return None
    name = "layer_norm" if norm.op == "layer_norm" else "rms_norm"
    how = {"norm": name, "eps": norm.options["eps"], **own}
    if norm.op != "rms_norm_add":
        return (), [], how
    # The sum with the residual becomes the first step.
    addend = norm.operands["addend"]
    view = Node(replace(Spec.dense(across, F32), offset=addend.spec.offset), addend.storage)
    return (Step("add", (0, 1)),), [view], how


def _renumber_before(steps: tuple[Step, ...], before: int, others: int, _: int) -> tuple[Step, ...]:
    """Renumber steps where other operands follow theirs."""
    return _renumber(steps, lambda value: value + others * (value > before))


def _renumber_after(
    steps: tuple[Step, ...], normed: int, before: int, others: int, first: int
) -> tuple[Step, ...]:
    """Renumber steps of a norm's result to follow other steps and operands."""

    def place(value: int) -> int:
        if value == normed:
            return before + others + first if first else 0
        # The result of a step.
        if value > others:
            return value + before + first
        return 1 + before + value - (value > normed)

    return _renumber(steps, place)


def _renumber(steps: tuple[Step, ...], place: Callable[[int], int]) -> tuple[Step, ...]:
    """Renumber the values of steps."""
    return tuple(replace(s, arguments=tuple(map(place, s.arguments))) for s in steps)


@norm_chain.fuses(NAME, "rms_norm_add")
def two_norms(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a norm chain with an operand that is another norm of as many rows."""
    across = node.options.get("across") or node.spec.shape
    given = _norm_steps(node, across)
    if given is None or given[2]["norm"] != "rms_norm" or given[2].get("also"):
        return None
    steps, operands, how = given
    for number, normed in enumerate(operands):
        norm = graph.producer(normed, "rms_norm")
        alone = norm and graph.read_by(normed.storage, node) and _once(normed, operands)
        # The kernel has one eps.
        if norm is None or not alone or norm.options["eps"] != how["eps"]:
            continue
        weight = norm.operands["weight"] if norm.launch.choices["WEIGHTED"] else None
        other, x = norm.operands["x"], node.operands["x"]
        if not _fits_beside(other, x) or not fits(x, *([] if weight is None else [weight])):
            continue
        operands = [*operands[:number], other, *operands[number + 1 :]]
        how |= {"also": number + 1, "also_weight": weight}
        shapes: dict[str, Any] = {"shape": node.spec.shape, "across": across}
        return graph.call(norm_chain, x, steps, *operands, **how, **shapes)
    return None
