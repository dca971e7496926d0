"""Ops of state space models: the short convolution and the scan, without padding or slots."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from wgpu_backend.dtypes import F32, I32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec
from wgpu_backend.ops.check import FLOATS, require, require_dtype, require_rank
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array

# States that one thread keeps.
MAX_STATES = 512


@op(trusted=True)
def ssm_conv(x: Node, weight: Node) -> Launch:
    """Slide each channel's kernel over its own values, without padding.

    Source: Gu & Dao 2023, "Mamba", §3.4.

    Parameters
    ----------
    x : (sequences, channels, taps - 1 + tokens), f32, f16 or bf16, of any strides
        The last values before the tokens, then theirs.
    weight : (channels, taps)
        f32, f16 or bf16.

    Returns
    -------
    (sequences, tokens, channels), f32.

    Raises
    ------
    ShapeError
        Channels differ, or there are fewer values than taps.
    """
    _require_taps(x, weight)
    (sequences, channels, length), taps = x.spec.shape, weight.spec.shape[1]
    out = Spec.dense((sequences, length - taps + 1, channels), F32)
    return Launch(
        out,
        {"x": x, "weight": weight},
        threads=out.size,
        params={
            "size": out.size,
            "tokens": out.shape[1],
            "channels": channels,
            "taps": taps,
        },
        work=2 * out.size * taps,
    )


@ssm_conv.reference
def ssm_conv_reference(x: Array, weight: Array) -> Array:
    """Sum shifted values times taps."""
    taps = weight.shape[1]
    tokens = x.shape[2] - taps + 1
    y = sum(x[:, :, k : k + tokens] * weight[:, k, None] for k in range(taps))
    return np.asarray(y).swapaxes(1, 2)


def _require_taps(x: Node, weight: Node) -> None:
    require_rank("ssm_conv", "x", x, 3, 3)
    require_rank("ssm_conv", "weight", weight, 2, 2)
    require_dtype("ssm_conv", "x", x, FLOATS)
    require_dtype("ssm_conv", "weight", weight, FLOATS)
    (_, channels, length), (rows, taps) = x.spec.shape, weight.spec.shape
    require(
        rows == channels,
        ShapeError,
        f"ssm_conv: x has {channels} channels, weight has {rows}",
    )
    require(
        1 <= taps <= length + 1,
        ShapeError,
        f"ssm_conv: weight has {taps} taps, x has {length} values, needs at least {taps - 1}",
    )


@op(dense=("state", "x", "dt", "a", "b", "c", "ids"), trusted=True)
def ssm_scan(state: Node, x: Node, dt: Node, a: Node, b: Node, c: Node, ids: Node) -> Launch:
    """Scan a state space model: ``s = s exp(dt a) + b dt x``, ``y = s c``, token by token.

    Source: Gu & Dao 2023, "Mamba", alg. 2; Dao & Gu 2024, "Transformers are SSMs", §6.

    Parameters
    ----------
    state : (rows, heads, cols, states), f32, f16 or bf16
        States before the first token; `states` is 1 to 512.
    x : (sequences, tokens, heads, cols)
    dt : (sequences, tokens, heads)
        Widths of steps; their softplus is taken.
    a : (heads, states), or (heads, 1) where a head's states decay alike
    b, c : (sequences, tokens, parts, states)
        `parts` divides `heads`; neighbours share one.
    ids : (sequences,), i32
        Row of `state` that each sequence begins with.

    Returns
    -------
    (x.size + sequences * heads * cols * states,), f32
        The values of y, laid out as `x`, then the states after the last token.

    Raises
    ------
    ShapeError
        Shapes do not fit each other.
    """
    operands = {"state": state, "x": x, "dt": dt, "a": a, "b": b, "c": c, "ids": ids}
    _require_scan(operands)
    sequences, tokens, heads, cols = x.spec.shape
    states = state.spec.shape[3]
    threads = sequences * heads * cols
    # An op has one result, so states follow the values in it, as in ggml.
    out = Spec.dense((x.spec.size + threads * states,), F32)
    return Launch(
        out,
        operands,
        threads=threads,
        params={
            "size": threads,
            "tokens": tokens,
            "heads": heads,
            "cols": cols,
            "parts": b.spec.shape[2],
            "rows": state.spec.shape[0],
            "results": x.spec.size,
        },
        choices={"STATES": states, "SHARED_DECAY": a.spec.shape[1] == 1},
        work=8 * x.spec.size * states,
    )


@ssm_scan.reference
def ssm_scan_reference(
    state: Array, x: Array, dt: Array, a: Array, b: Array, c: Array, ids: Array
) -> Array:
    """Scan token by token over all heads at once."""
    heads, parts = x.shape[2], b.shape[2]
    b, c = (np.repeat(m, heads // parts, axis=2) for m in (b, c))
    # Ids outside are clamped, as kernels do.
    now = state[np.clip(ids, 0, len(state) - 1)].astype(np.float32)
    # The softplus is part of ggml's op, too.
    steps = np.logaddexp(dt, np.float32(0))
    y = np.zeros(x.shape, np.float32)
    for t in range(x.shape[1]):
        step = steps[:, t, :, None]
        now = now * np.exp(step * a)[:, :, None, :]
        now += (x[:, t] * step)[..., None] * b[:, t, :, None, :]
        y[:, t] = np.einsum("shdn,shn->shd", now, c[:, t])
    return np.concatenate([y.reshape(-1), now.reshape(-1)])


def _require_scan(operands: Mapping[str, Node]) -> None:
    for name, rank in (("state", 4), ("x", 4), ("dt", 3), ("a", 2), ("b", 4), ("c", 4)):
        require_rank("ssm_scan", name, operands[name], rank, rank)
        require_dtype("ssm_scan", name, operands[name], FLOATS)
    require_dtype("ssm_scan", "ids", operands["ids"], (I32,))
    shapes = {name: node.spec.shape for name, node in operands.items()}
    for name, shape in _shapes_needed(shapes).items():
        require(
            shapes[name] == shape, ShapeError, f"ssm_scan: {name} is {shapes[name]}, needs {shape}"
        )
    heads, parts = shapes["x"][2], shapes["b"][2]
    require(
        parts > 0 and heads % parts == 0,
        ShapeError,
        f"ssm_scan: {heads} heads, not a multiple of {parts} parts",
    )
    rows, *_, states = shapes["state"]
    require(
        1 <= states <= MAX_STATES and rows > 0,
        ShapeError,
        f"ssm_scan: state is {shapes['state']}, needs 1 row and 1 to {MAX_STATES} states",
    )


def _shapes_needed(shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
    """Return the shapes that a scan's operands need, given `x`, the states and the parts."""
    sequences, tokens, heads, cols = shapes["x"]
    rows, *_, states = shapes["state"]
    parts, decays = shapes["b"][2], shapes["a"][1]
    return {
        "state": (rows, heads, cols, states),
        "dt": (sequences, tokens, heads),
        "a": (heads, 1 if decays == 1 else states),
        "b": (sequences, tokens, parts, states),
        "c": (sequences, tokens, parts, states),
        "ids": (sequences,),
    }
