"""Binary search in sorted values: searchsorted."""

from __future__ import annotations

from typing import Literal

import numpy as np

from wgpu_backend.dtypes import I32, I64
from wgpu_backend.errors import OptionError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import require, require_dtype, require_rank
from wgpu_backend.ops.elementwise.launches import WIDE
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reduce.folding import NUMBERS, as_words, integer_keys
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.sampling.sorting import sort_keys


@op(dense=("x", "v"), trusted=True)
def searchsorted(x: Node, v: Node, side: str = "left") -> Launch:
    """Return the indices at which to insert values into sorted ones, so that these stay sorted.

    Parameters
    ----------
    x : (n,)
        Sorted; f32, f16, bf16, integers or bool.
    v : (...)
        Up to eight axes, of the dtype of `x`.
    side : str
        Before equal values with ``"left"``, after them with ``"right"``.

    Returns
    -------
    Tensor of the shape of `v`, i32, 0 to `n`; NaN counts as larger than any number.

    Raises
    ------
    ShapeError
        `x` has another number of axes.
    OptionError
        There is no such side.
    """
    require_rank("searchsorted", "v", v, 0, 8)
    require_rank("searchsorted", "x", x, 1, 1)
    require_dtype("searchsorted", "x", x, NUMBERS)
    require_dtype("searchsorted", "v", v, (x.spec.dtype,))
    require(
        side in ("left", "right"),
        OptionError,
        f"searchsorted: side is {side!r}, needs 'left' or 'right'",
    )
    out = Spec.dense(v.spec.shape, I32)
    # No key of 32 bits orders integers of 64 bits: another kernel compares two words.
    wide = x.spec.dtype in WIDE
    order = {"SIGNED": x.spec.dtype == I64} if wide else integer_keys(x.spec.dtype)
    return Launch(
        out,
        {"x": x, "v": v},
        threads=out.size,
        shader="ops/sampling/searchsorted_wide" if wide else "",
        params={"size": out.size, "length": x.spec.size},
        choices={**order, **as_words(x.spec.dtype, "x", "v"), "RIGHT": side == "right"},
        work=out.nbytes * max(x.spec.size.bit_length(), 1),
    )


@searchsorted.reference
def searchsorted_reference(x: Array, v: Array, side: Literal["left", "right"] = "left") -> Array:
    """Return the indices that keep the order."""
    return np.searchsorted(sort_keys(x, descending=False), sort_keys(v, descending=False), side)
