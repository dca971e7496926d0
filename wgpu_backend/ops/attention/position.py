"""Rotary position embedding: one table of angles per step, one rotation per layer."""

from __future__ import annotations

import numpy as np

from wgpu_backend.dtypes import F32, I32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import FLOATS, require, require_dtype, require_rank
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array


@op(dense=("positions", "frequencies"), trusted=True)
def rope_table(positions: Node, frequencies: Node, *, magnitude: float = 1.0) -> Launch:
    """Compute cosine and sine of every position times every frequency.

    Parameters
    ----------
    positions : (tokens,)
        i32.
    frequencies : (pairs,), f32
        Radians per position.
    magnitude : float
        Factor of both; YaRN's attention factor.

    Returns
    -------
    (tokens, pairs, 2), f32.
    """
    require_rank("rope_table", "positions", positions, 1, 1)
    require_rank("rope_table", "frequencies", frequencies, 1, 1)
    require_dtype("rope_table", "positions", positions, (I32,))
    require_dtype("rope_table", "frequencies", frequencies, (F32,))
    tokens, pairs = positions.spec.shape[0], frequencies.spec.shape[0]
    return Launch(
        Spec.dense((tokens, pairs, 2), F32),
        {"positions": positions, "frequencies": frequencies},
        threads=tokens * pairs,
        params={"size": tokens * pairs, "pairs": pairs, "magnitude": magnitude},
        work=8 * tokens * pairs,
    )


@rope_table.reference
def rope_table_reference(positions: Array, frequencies: Array, *, magnitude: float = 1.0) -> Array:
    """Compute cosine and sine of every position times every frequency."""
    angles = positions[:, None].astype(np.float32) * frequencies
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1) * np.float32(magnitude)


@op(dense=("positions", "frequencies", "axes"), trusted=True)
def rope_table_axes(
    positions: Node, frequencies: Node, axes: Node, *, count: int = 4, magnitude: float = 1.0
) -> Launch:
    """Compute cosine and sine for tokens of several positions, such as time, height and width.

    Source: Wang et al. 2024, "Qwen2-VL", §2.1, "Multimodal Rotary Position Embedding".

    Parameters
    ----------
    positions : (count, tokens) or (count * tokens,), i32
        All tokens' first positions, then all their second ones, and so on.
    frequencies : (pairs,), f32
        Radians per position.
    axes : (pairs,), i32
        Which of its token's positions each pair turns by, ``0 … count - 1``.
    count : int
        Positions of a token.
    magnitude : float
        Factor of both.

    Returns
    -------
    (tokens, pairs, 2), f32.

    Raises
    ------
    ShapeError
        The positions are no multiple of `count`, or `axes` is not as long as `frequencies`.
    """
    _require_axes(positions, frequencies, axes, count)
    tokens, pairs = positions.spec.size // count, frequencies.spec.shape[0]
    return Launch(
        Spec.dense((tokens, pairs, 2), F32),
        {"positions": positions, "frequencies": frequencies, "axes": axes},
        threads=tokens * pairs,
        params={
            "size": tokens * pairs,
            "pairs": pairs,
            "tokens": tokens,
            "count": count,
            "magnitude": magnitude,
        },
        work=8 * tokens * pairs,
    )


@rope_table_axes.reference
def rope_table_axes_reference(
    positions: Array,
    frequencies: Array,
    axes: Array,
    *,
    count: int = 4,
    magnitude: float = 1.0,
) -> Array:
    """Compute cosine and sine of the position that rotates each pair."""
    chosen = positions.reshape(count, -1)[axes].T
    angles = chosen.astype(np.float32) * frequencies
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1) * np.float32(magnitude)


def _require_axes(positions: Node, frequencies: Node, axes: Node, count: int) -> None:
    name = "rope_table_axes"
    require_rank(name, "positions", positions, 1, 2)
    require_rank(name, "frequencies", frequencies, 1, 1)
    require_dtype(name, "positions", positions, (I32,))
    require_dtype(name, "frequencies", frequencies, (F32,))
    require_dtype(name, "axes", axes, (I32,))
    shape, pairs = positions.spec.shape, frequencies.spec.shape[0]
    require(
        count > 0 and shape[0] % count == 0 and (len(shape) == 1 or shape[0] == count),
        ShapeError,
        f"{name}: positions is {shape}, needs {count} for each token, ({count}, tokens)",
    )
    require(
        axes.spec.shape == (pairs,),
        ShapeError,
        f"{name}: axes is {axes.spec.shape}, frequencies has {pairs} pairs",
    )


@op(dense=("table",), trusted=True)
def rope(x: Node, table: Node, *, interleaved: bool = False) -> Launch:
    """Rotate pairs of values of each head by the angles of its token.

    Source: Su et al. 2021, "RoFormer", eq. 34.

    Parameters
    ----------
    x : (tokens, heads, cols)
        f32 or f16; values of a head are neighbours.
    table : (tokens, pairs, 2), f32
        From `rope_table`; values beyond ``2 * pairs`` of a head are copied.
    interleaved : bool
        Pairs are neighbours ``(2i, 2i + 1)``; otherwise halves ``(i, i + pairs)``, as in NeoX.

    Returns
    -------
    Like `x`, f32, dense.

    Raises
    ------
    ShapeError
        The table is for another number of tokens, rotates more values than a head has, or has
        other than two values a pair.
    """
    _require_rotation(x, table)
    tokens, heads, cols = x.spec.shape
    # A thread takes two values: a pair, or two that are not rotated.
    size = tokens * heads * ((cols + 1) // 2)
    return Launch(
        Spec.dense(x.spec.shape, F32),
        {"x": x, "table": table},
        threads=size,
        params={
            "size": size,
            "heads": heads,
            "cols": cols,
            "pairs": table.spec.shape[1],
            "token_stride": x.spec.strides[0],
            "head_stride": x.spec.strides[1],
        },
        choices={"INTERLEAVED": interleaved},
        work=2 * x.spec.nbytes,
    )


@rope.reference
def rope_reference(x: Array, table: Array, *, interleaved: bool = False) -> Array:
    """Rotate pairs of values of each head."""
    pairs = table.shape[1]
    cosine, sine = table[:, None, :, 0], table[:, None, :, 1]
    # Su et al. 2021, "RoFormer", pairs neighbours; GPT-NeoX pairs the halves of the rotated part.
    first = slice(0, 2 * pairs, 2) if interleaved else slice(0, pairs)
    second = slice(1, 2 * pairs, 2) if interleaved else slice(pairs, 2 * pairs)
    # Values after the rotated ones stay as they are.
    y = x.copy()
    y[..., first] = x[..., first] * cosine - x[..., second] * sine
    y[..., second] = x[..., first] * sine + x[..., second] * cosine
    return y


def _require_rotation(x: Node, table: Node) -> None:
    require_rank("rope", "x", x, 3, 3)
    require_rank("rope", "table", table, 3, 3)
    require_dtype("rope", "x", x, FLOATS)
    tokens, _, cols = x.spec.shape
    rotated = 2 * table.spec.shape[1]
    require(
        table.spec.shape[0] == tokens,
        ShapeError,
        f"rope: table has {table.spec.shape[0]} tokens, x has {tokens}",
    )
    require(
        table.spec.shape[2] == 2,
        ShapeError,
        f"rope: table is {table.spec.shape}, needs cosine and sine, 2 values, last",
    )
    require(rotated <= cols, ShapeError, f"rope: table rotates {rotated} values, heads have {cols}")
    require(
        x.spec.strides[2] == 1,
        ShapeError,
        f"rope: values of a head lie {x.spec.strides[2]} apart, need 1; call contiguous()",
    )
