"""Operand checks of attention over a paged cache."""

from __future__ import annotations

from collections.abc import Mapping

from wgpu_backend.dtypes import F16, F32, I32, Q4_0, Q8_0
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Shape
from wgpu_backend.ops.attention.paged_options import Scores
from wgpu_backend.ops.check import FLOATS, require, require_dtype, require_rank

CACHE_TYPES = (F32, F16, Q8_0, Q4_0)
# Values of a block in the block formats that a cache may have.
BLOCK_VALUES = 32
# Where a token is in its sequence, and in which one.
PLACES = ("positions", "sequences")
# Storage buffers that a kernel may bind on every device.
MOST_BUFFERS = 8


def require_operands(operands: Mapping[str, Node], scores: Scores) -> int:
    """Check that operands belong together, and return the number of values of a head's result.

    Parameters
    ----------
    operands : mapping of str to Node
        By the names of `attention`; ends, sinks and bias where there are any.

    Raises
    ------
    ShapeError, DTypeError
        Shapes, types or layouts of operands do not fit together.
    """
    _require_cache(operands)
    v_cols = _require_heads(operands, scores)
    values = {} if scores.v_cols else {"v": v_cols}
    _require_blocks(operands, {"k": operands["q"].spec.shape[2], **values})
    _require_ends(operands, scores)
    _require_terms(operands)
    return v_cols


def require_buffers(operands: Mapping[str, Node]) -> None:
    """Check that a kernel can bind its operands: tensors of one storage share a buffer."""
    found = buffers(operands)
    require(
        found <= MOST_BUFFERS,
        ShapeError,
        f"attention: operands and result lie in {found} buffers, needs at most {MOST_BUFFERS}; "
        "take places of Pages.joined, and sinks and bias of one tensor",
    )


def buffers(operands: Mapping[str, Node]) -> int:
    """Count a kernel's buffers: one per storage, two per storage in blocks, and the result."""
    storages = {node.storage: node.spec.dtype.quantised for node in operands.values()}
    # Blocks have two planes, quants and scales, each with a binding.
    return 1 + sum(2 if blocks else 1 for blocks in storages.values())


def _require_heads(operands: Mapping[str, Node], scores: Scores) -> int:
    """Check that head sizes are multiples of 4, and return the values of a head's result."""
    heads, cols = operands["q"].spec.shape[1:]
    kv_heads = scores.kv_heads
    keys, values = (operands[name].spec.shape[1] for name in "kv")
    require(
        kv_heads > 0 and heads % kv_heads == 0,
        ShapeError,
        f"attention: {heads} query heads, not a multiple of {kv_heads} cache heads",
    )
    require(
        keys == kv_heads * cols and cols % 4 == 0,
        ShapeError,
        f"attention: keys have {keys} values a slot, {kv_heads} heads of {cols} need "
        f"{kv_heads * cols}; heads are multiples of 4",
    )
    if scores.v_cols:
        return _require_shared(operands, scores.v_cols, cols)
    v_cols = values // kv_heads
    require(
        v_cols * kv_heads == values and v_cols % 4 == 0,
        ShapeError,
        f"attention: values have {values} a slot, not {kv_heads} heads of multiples of 4",
    )
    return v_cols


def _require_shared(operands: Mapping[str, Node], v_cols: int, cols: int) -> int:
    k, v = operands["k"], operands["v"]
    require(
        k.storage is v.storage and k.spec == v.spec and v_cols <= cols and v_cols % 4 == 0,
        ShapeError,
        f"attention: values are the first {v_cols} columns of keys of {cols}; needs keys for "
        "values, and a multiple of 4 of their columns",
    )
    return v_cols


def _require_blocks(operands: Mapping[str, Node], heads: Mapping[str, int]) -> None:
    """Check that heads are whole blocks."""
    for name in (name for name in heads if operands[name].spec.dtype.quantised):
        require(
            heads[name] % BLOCK_VALUES == 0,
            ShapeError,
            f"attention: a head of {name} has {heads[name]} values, {operands[name].spec.dtype} "
            f"needs multiples of {BLOCK_VALUES}; choose f16 for the cache",
        )


def _require_cache(operands: Mapping[str, Node]) -> None:
    q, k, v = (operands[name] for name in "qkv")
    require_rank("attention", "q", q, 3, 3)
    require_dtype("attention", "q", q, FLOATS)
    require(
        q.spec.strides[2] == 1,
        ShapeError,
        f"attention: values of a query lie {q.spec.strides[2]} apart, need 1; call contiguous()",
    )
    for name, node in (("k", k), ("v", v)):
        require_rank("attention", name, node, 2, 2)
        require_dtype("attention", name, node, CACHE_TYPES)
        require(
            # Kernels compute the place of a slot from the start of the buffer.
            node.spec.is_dense and node.spec.offset == 0,
            ShapeError,
            f"attention: {name} is a view of {node.spec.shape}, needs the whole cache of a layer",
        )
    require(
        0 < k.spec.shape[0] == v.spec.shape[0],
        ShapeError,
        f"attention: keys have {k.spec.shape[0]} slots, values {v.spec.shape[0]}, needs as many",
    )
    _require_places(operands, q.spec.shape[0])


def _require_places(operands: Mapping[str, Node], tokens: int) -> None:
    require_rank("attention", "table", operands["table"], 2, 2)
    require(
        operands["table"].spec.size > 0,
        ShapeError,
        f"attention: table is {operands['table'].spec.shape}, needs at least 1 block",
    )
    for name in (*PLACES, "table"):
        require_dtype("attention", name, operands[name], (I32,))
    for name in PLACES:
        require(
            operands[name].spec.shape == (tokens,),
            ShapeError,
            f"attention: {name} is {operands[name].spec.shape}, q has {tokens} tokens",
        )


def _require_ends(operands: Mapping[str, Node], scores: Scores) -> None:
    tokens = operands["q"].spec.shape[0]
    require(
        scores.causal or "ends" in operands,
        ShapeError,
        "attention: with causal=False a token sees up to its end; needs ends, the last position "
        "of a text for all of its tokens",
    )
    if "ends" in operands:
        shape = operands["ends"].spec.shape
        require_dtype("attention", "ends", operands["ends"], (I32,))
        require(
            shape == (tokens,), ShapeError, f"attention: ends is {shape}, q has {tokens} tokens"
        )


def _require_terms(operands: Mapping[str, Node]) -> None:
    """Check that sinks have a value, and the bias has a row, for each query head."""
    heads = operands["q"].spec.shape[1]
    if "sinks" in operands:
        shape = _dense_floats("sinks", operands["sinks"])
        require(
            shape == (heads,),
            ShapeError,
            f"attention: sinks is {shape}, needs one for each of {heads} heads",
        )
    if "bias" in operands:
        shape = _dense_floats("bias", operands["bias"])
        require(
            len(shape) == 2 and shape[0] == heads and shape[1] % 2 == 1,
            ShapeError,
            f"attention: bias is {shape}, needs ({heads}, 2 * reach + 1), for heads and distances",
        )


def _dense_floats(name: str, node: Node) -> Shape:
    """Return the shape of an operand that must be dense floats."""
    require_dtype("attention", name, node, FLOATS)
    require(
        node.spec.is_dense,
        ShapeError,
        f"attention: values of {name} have strides {node.spec.strides}, need to lie side by side; "
        "call contiguous()",
    )
    return node.spec.shape
