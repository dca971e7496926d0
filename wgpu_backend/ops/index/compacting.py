"""Indices of true values: count_true, and compact, whose length the host reads from it."""

from __future__ import annotations

import numpy as np

from wgpu_backend.dtypes import BOOL, I32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec, extents
from wgpu_backend.ops.check import require, require_dtype
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reduce.reduction import sum as sum_over
from wgpu_backend.ops.reduce.scan import cumsum
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.shape.copying import cast
from wgpu_backend.ops.shape.shapes import reshape_node


def count_true(mask: Node) -> Node:
    """Count the values that are true.

    Parameters
    ----------
    mask : (...)
        Up to eight axes, bool.

    Returns
    -------
    (), i32.
    """
    require_dtype("count_true", "mask", mask, (BOOL,))
    return cast(sum_over(mask), dtype=I32)


def compact(mask: Node, count: int) -> Node:
    """Return the row-major indices of the values that are true, in order.

    Parameters
    ----------
    mask : (...)
        Up to eight axes, bool.
    count : int
        How many there are, from `count_true`. Of more the first are taken; where there are fewer,
        0 fills up.

    Returns
    -------
    (count,), i32.

    Raises
    ------
    ShapeError
        `count` is negative.
    """
    require_dtype("compact", "mask", mask, (BOOL,))
    (count,) = extents("compact: count", (count,))
    require(count >= 0, ShapeError, f"compact: count is {count}, needs 0 or more")
    flat = reshape_node(mask, (mask.spec.size,))
    return compact_by(flat, cumsum(flat), count=count)


@op(dense=("mask", "ends"), trusted=True)
def compact_by(mask: Node, ends: Node, *, count: int) -> Launch:
    """Return the indices of the values that are true; see `compact`.

    Parameters
    ----------
    mask : (n,)
        Bool.
    ends : (n,), u32
        How many are true up to each value, itself included.

    Returns
    -------
    (count,), i32.
    """
    length = mask.spec.size
    require(
        ends.spec.shape == (length,),
        ShapeError,
        f"compact_by: ends is {ends.spec.shape}, mask is {mask.spec.shape}, needs one for each",
    )
    return Launch(
        Spec.dense((count,), I32),
        {"mask": mask, "ends": ends},
        # One for each value, and one for each place of the result, which may have more.
        threads=max(length, count),
        params={"length": length, "count": count},
        work=mask.spec.nbytes + ends.spec.nbytes,
    )


@compact_by.reference
def compact_by_reference(mask: Array, ends: Array, *, count: int) -> Array:
    """Return the indices of the values that are true."""
    found = np.flatnonzero(mask)[:count]
    return np.pad(found, (0, count - len(found)))
