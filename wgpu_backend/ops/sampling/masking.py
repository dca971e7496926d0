"""The grammar mask of logits: mask_logits keeps allowed tokens and rules out all others."""

from __future__ import annotations

from wgpu_backend.dtypes import F32, U32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import MAX_GROUPS, require, require_dtype, require_rank
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array
from wgpu_backend.text.grammar.masks import apply_mask

# Columns of a work group: 64 threads have four each.
COLUMNS = 256


@op(dense=("x", "mask"), trusted=True)
def mask_logits(x: Node, mask: Node) -> Launch:
    """Set logits to minus infinity where the mask's bit is 0.

    Parameters
    ----------
    x : (rows, cols)
        f32.
    mask : (rows, words), u32
        Bit ``c % 32`` of word ``c // 32`` is column c's.

    Returns
    -------
    (rows, cols), f32.

    Raises
    ------
    ShapeError
        Numbers of rows differ, or the words are not as many as the columns need.
    """
    require_rank("mask_logits", "x", x, 2, 2)
    require_dtype("mask_logits", "x", x, (F32,))
    require_rank("mask_logits", "mask", mask, 2, 2)
    require_dtype("mask_logits", "mask", mask, (U32,))
    rows, cols = x.spec.shape
    wanted = (rows, -(-cols // 32))
    require(
        mask.spec.shape == wanted,
        ShapeError,
        f"mask_logits: mask is {mask.spec.shape}, x is {x.spec.shape}, needs a mask of {wanted}",
    )
    return Launch(
        Spec.dense((rows, cols), F32),
        {"x": x, "mask": mask},
        groups=(-(-cols // COLUMNS), min(rows, MAX_GROUPS), 1),
        params={"rows": rows, "cols": cols, "words": wanted[1]},
        choices={"WG": COLUMNS // 4},
        work=2 * x.spec.nbytes + mask.spec.nbytes,
    )


@mask_logits.reference
def mask_logits_reference(x: Array, mask: Array) -> Array:
    """Set logits to minus infinity where the mask's bit is 0."""
    return apply_mask(x, mask)
