"""Split-K products: work groups take parts of k where tiles are too few for a device.

A work group then has a large tile and a part of each row. Its sums go to storage. A second kernel
adds the parts up, always in the same order, and applies the product's epilogue.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.capabilities import Capabilities, Tile
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.kernels.gpu.matrix import pick_blocks
from wgpu_backend.kernels.gpu.matvec import COLUMNS
from wgpu_backend.kernels.gpu.register_tiles import (
    FEWEST_VALUES,
    GROUP,
    MOST_PARTS,
    f16_tile,
    f32_tile,
    pair_tile,
    q8_tile,
)
from wgpu_backend.kernels.refusal import no_kernel
from wgpu_backend.ops.check import require, require_dtype, require_rank, require_tensor
from wgpu_backend.ops.linear.attributes import VALUES, Epilogue, Precision, Prologue, get_attributes
from wgpu_backend.ops.linear.epilogue_rules import ACTIVATIONS, adds, is_bare
from wgpu_backend.ops.linear.gates import GATES
from wgpu_backend.ops.linear.linear import linear, linear_reference
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array, get_reference

NEEDS = "a GPU, and as much workgroup memory as tiles take"
# Values that a thread adds up: a vector.
WIDTH = 4
# Threads that keep a large device busy. Twice as many gained nothing on devices whose cores hold no
# more of them (benchmarks/log/prompts-and-ops.md).
ENOUGH_THREADS = 32768
# Groups of 32 values by which parts grow: a slab of products in eight bits. Steps of 8, a block of
# K formats, left uneven parts: 9 % more instructions for 5,120 values.
STEP = 2

# What other rules put into a product.
ABSORBED = ("add", *ACTIVATIONS)


@op(
    select=no_kernel("linear_splits", NEEDS, "linear"),
    shader="kernels/gpu/matmul_tiled",
    dense=("x",),
    trusted=True,
)
def linear_splits(
    weight: Node,
    x: Node,
    *,
    part_groups: int,
    prologue: Prologue = VALUES,
    precision: Precision = "default",
) -> Launch:
    """Multiply rows of `x` with rows of a weight, with a separate sum for each part of k.

    Parameters
    ----------
    weight, x, prologue, precision
        See `linear`.
    part_groups : int
        Groups of 32 values in a part; the last one may have fewer.

    Returns
    -------
    (parts, ..., m), f32: what `linear_merge` takes.

    Raises
    ------
    ShapeError
        As `linear`, or parts are empty.
    DeviceError
        When it is run: the device has no kernel for it.
    """
    launch = linear.record(weight, x, prologue=prologue, precision=precision)
    groups = launch.count("groups")
    require(
        part_groups > 0 and _adds_up(prologue),
        ShapeError,
        f"linear_splits: {groups} groups in parts of {part_groups}, x of {prologue}; needs 1 at "
        "least, and rows without a norm's factor that are not pairs",
    )
    parts = -(-groups // part_groups)
    return Launch(
        Spec.dense((parts, *launch.out.shape), F32),
        launch.operands,
        params={**launch.params, "part_groups": part_groups},
        choices={**launch.choices, "SPLIT": True},
        work=launch.work,
        attributes=launch.attributes,
    )


@linear_splits.reference
def linear_splits_reference(
    weight: Array,
    x: Array,
    *,
    part_groups: int,
    prologue: Prologue = VALUES,
    precision: Precision = "default",
) -> Array:
    """Multiply by a weight that is 0 outside one part of each row."""
    k, size = weight.shape[-1], part_groups * GROUP
    parts = [_part(weight, first, first + size) for first in range(0, k, size)]
    return np.stack(
        [linear_reference(part, x, prologue=prologue, precision=precision) for part in parts]
    )


@op(shader="kernels/gpu/linear_merge", dense=("x", "addend"), trusted=True)
def linear_merge(x: Node, addend: Node | None = None, *, activation: str | None = None) -> Launch:
    """Add up the parts of a product in order, and apply the epilogue.

    Parameters
    ----------
    x : (parts, ..., m), f32
        From `linear_splits`; `m` a multiple of 4, with an activation of 8.
    addend : (m,) or (..., m), f32, or None
        A bias, or a residual.
    activation : str or None
        See `Epilogue`; the first half of a row is the gate.

    Returns
    -------
    (..., m), f32, with an activation (..., m / 2)

    Raises
    ------
    ShapeError
        Rows are no whole vectors, or the addend does not fit.
    """
    require_rank("linear_merge", "x", x, 2)
    require_dtype("linear_merge", "x", x, (F32,))
    parts, *rows, m = x.spec.shape
    halves = 1 if activation is None else 2
    require(
        m % (WIDTH * halves) == 0 and activation in (None, *GATES),
        ShapeError,
        f"linear_merge: rows of {m} and {activation!r}, needs a multiple of {WIDTH * halves} and "
        f"none or one of {', '.join(GATES)}",
    )
    out = Spec.dense((*rows, m // halves), F32)
    sizes = {
        "size": out.size // WIDTH,
        "vec4s": out.shape[-1] // WIDTH,
        "part_vec4s": prod(rows) * m // WIDTH,
        "addend_offset": 0,
        "addend_stride": 0,
    }
    gate = {} if activation is None else {"GATED": True, "gate": f"lib/gate/{activation}"}
    launch = Launch(
        out,
        {"x": x},
        threads=out.size // WIDTH,
        params=sizes,
        choices={"PARTS": parts, "addend": "=x", **gate},
        work=x.spec.nbytes,
    )
    return launch if addend is None else _add(launch, addend)


@linear_merge.reference
def linear_merge_reference(
    x: Array, addend: Array | None = None, *, activation: str | None = None
) -> Array:
    """Sum over parts, and apply the epilogue."""
    y = x.sum(axis=0)
    if activation is not None:
        gate, up = np.split(y, 2, axis=-1)
        y = get_reference(activation)(gate) * up
    return y if addend is None else y + addend


def _add(launch: Launch, addend: Node) -> Launch:
    """Return a launch that adds a row, or a tensor of the result's shape."""
    require_tensor("linear_merge", "addend", addend)
    require_dtype("linear_merge", "addend", addend, (F32,))
    m, shape = launch.out.shape[-1], addend.spec.shape
    require(
        shape in ((m,), launch.out.shape),
        ShapeError,
        f"linear_merge: addend is {shape}, needs {(m,)} or {launch.out.shape}",
    )
    place = {
        "addend_offset": addend.spec.offset,
        "addend_stride": 0 if shape == (m,) else m,
    }
    return replace(
        launch,
        operands={**launch.operands, "addend": addend},
        params={**launch.params, **place},
        choices={**launch.choices, "addend": "formats/vec4/f32", "ADDS": True},
    )


def _adds_up(prologue: Prologue) -> bool:
    """Return whether parts of a product add up to it; the factor of a norm needs whole rows."""
    return prologue.eps is None and prologue.parts == 1


@linear_merge.fuses("linear", name="linear_splits")
def in_parts(node: OpNode, graph: Graph) -> Node | None:
    """Rewrite a product of many columns that has few large tiles, and long rows."""
    found, weight, x = get_attributes(node.launch), node.operands["weights"], node.operands["x"]
    # `linear_merge` applies an addend and an activation, and no other epilogue.
    if found.epilogue != Epilogue(found.epilogue.activation) or not _adds_up(found.prologue):
        return None
    m, n = weight.spec.shape[0], node.launch.count("n")
    halves = 1 if found.epilogue.activation is None else 2
    if n <= COLUMNS or m % (WIDTH * halves) or len(node.spec.shape) > 3 or _waits(node, graph):
        return None
    tile = tile_in_parts(node.launch, graph.capabilities)
    part_groups = tile and groups_per_part(m, n, node.launch.count("groups"), tile)
    if not part_groups:
        return None
    given = {"prologue": found.prologue, "precision": found.precision}
    sums = graph.call(linear_splits, weight, x, part_groups=part_groups, **given)
    # All parts lie in one buffer.
    if sums.spec.nbytes > graph.capabilities.max_binding_nbytes:
        return None
    addend = node.operands["addend"] if adds(node) else None
    return graph.call(linear_merge, sums, addend, activation=found.epilogue.activation)


def _waits(node: OpNode, graph: Graph) -> bool:
    """Return whether the only reader of a product is an op that other rules fuse into it."""
    return is_bare(node) and graph.serves_only(node.node, lambda reader: reader.op in ABSORBED)


def tile_in_parts(launch: Launch, capabilities: Capabilities) -> Tile | None:
    """Return the tile of a product in parts of k; None if it is not made in tiles."""
    found = get_attributes(launch)
    m, n = launch.operands["weights"].spec.shape[0], launch.count("n")
    dtype = launch.operands["weights"].spec.dtype
    if found.prologue.in_bytes:
        return q8_tile(dtype, m, n, STEP, capabilities, split=True)[0]
    if found.prologue.form == "f16_columns":
        return pair_tile(dtype, m, n, STEP, capabilities, split=True)[0]
    if found.precision == "f16" and found.prologue == VALUES:
        return f16_tile(m, n, capabilities, dtype, split=True)[0]
    if found.prologue.form == "f16_rows" and (unit := capabilities.matrix) is not None:
        return pick_blocks(m, n, capabilities, split=True).tile(unit)
    if found.prologue == VALUES:
        return f32_tile(m, n, capabilities, dtype, split=True)[0]
    return None


def groups_per_part(m: int, n: int, groups: int, tile: Tile) -> int:
    """Return how many groups of 32 values a part of k has, so that work groups fill a device.

    Parameters
    ----------
    m, n : int
        Rows of the weight, and columns.
    groups : int
        Of 32 values in a row.

    Returns
    -------
    int
        0 where k stays whole: tiles are enough, or rows too short.
    """
    if not m * n:
        # No work group has anything to do.
        return 0
    threads = tile.threads * -(-m // tile.rows) * -(-n // tile.columns)
    parts = min(MOST_PARTS, ENOUGH_THREADS // threads, GROUP * groups // FEWEST_VALUES)
    if parts < 2:
        return 0
    return -(-groups // (parts * STEP)) * STEP


def _part(weight: Array, first: int, end: int) -> Array:
    part = np.zeros_like(weight)
    part[:, first:end] = weight[:, first:end]
    return part
