"""Convolutions that remember the last values of each sequence: short_conv, token_shift.

`wgpu_backend.ops.recurrent.runs` defines states and runs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import FLOATS, pad_to_4d, require, require_dtype, require_rank
from wgpu_backend.ops.op import op
from wgpu_backend.ops.recurrent.runs import require_runs, require_state
from wgpu_backend.ops.recurrent.runs_reference import scan_runs_reference
from wgpu_backend.ops.reference import Array

# Taps that a thread keeps in registers.
MAX_TAPS = 32


@op(dense=("runs",), trusted=True)
def short_conv(
    x: Node,
    weight: Node,
    state: Node,
    runs: Node,
    bias: Node | None = None,
    *,
    silu: bool = False,
) -> Launch:
    """Slide each channel's kernel over its sequence's values, and remember the last of these.

    Source: Gu & Dao 2023, "Mamba", §3.4.

    Parameters
    ----------
    x : (tokens, channels)
        f32, f16 or bf16, of any strides.
    weight : (channels, taps), f32, f16 or bf16
        The last tap is the token's own; 2 to 32 taps.
    state : (slots, taps - 1, channels), f32
        The values before a sequence's next token, the oldest first; written in place.
    runs : (sequences, 4), i32
        See `wgpu_backend.ops.recurrent.runs`.
    bias : (channels,) or None
    silu : bool
        Whether the results go through SiLU.

    Returns
    -------
    (tokens, channels), f32.

    Raises
    ------
    ShapeError
        Shapes do not fit each other.
    """
    channels, taps = _check_operands("short_conv", x, weight)
    if bias is not None:
        require_dtype("short_conv", "bias", bias, FLOATS)
        require(
            bias.spec.shape == (channels,),
            ShapeError,
            f"short_conv: bias is {bias.spec.shape}, x has {channels} channels",
        )
    choices = {"BIASED": bias is not None, "ACTIVATED": silu}
    # A binding needs a buffer even if the kernel does not read it.
    return _launch("short_conv", x, weight, x if bias is None else bias, state, runs, taps, choices)


@short_conv.reference
def short_conv_reference(
    x: Array,
    weight: Array,
    state: Array,
    runs: Array,
    bias: Array | None = None,
    *,
    silu: bool = False,
) -> Array:
    """Sum the last values times taps, token by token."""

    def step(token: int, before: Array) -> tuple[Array, Array]:
        seen = np.concatenate([before, x[token : token + 1]])
        y = (seen * weight.T).sum(axis=0)
        y = y if bias is None else y + bias
        return y / (1 + np.exp(-y)) if silu else y, seen[1:]

    return scan_runs_reference(state, runs, np.zeros(x.shape, np.float32), step)


def _check_operands(name: str, x: Node, weight: Node) -> tuple[int, int]:
    require_rank(name, "x", x, 2, 2)
    require_rank(name, "weight", weight, 2, 2)
    require_dtype(name, "x", x, FLOATS)
    require_dtype(name, "weight", weight, FLOATS)
    channels, (rows, taps) = x.spec.shape[1], weight.spec.shape
    require(rows == channels, ShapeError, f"{name}: x has {channels} channels, weight has {rows}")
    require(
        1 < taps <= MAX_TAPS,
        ShapeError,
        f"{name}: weight has {taps} taps, needs 2 to {MAX_TAPS}",
    )
    return channels, taps


@op(dense=("runs",), shader="ops/recurrent/short_conv", trusted=True)
def token_shift(x: Node, state: Node, runs: Node) -> Launch:
    """Return each token's predecessor in its sequence, and remember the last token.

    Source: Peng et al. 2023, "RWKV", §3.1.

    Parameters
    ----------
    x : (tokens, channels)
        f32, f16 or bf16, of any strides.
    state : (slots, 1, channels), f32
        The token before a sequence's next; written in place.
    runs : (sequences, 4), i32
        See `wgpu_backend.ops.recurrent.runs`.

    Returns
    -------
    (tokens, channels), f32; zeros for the first token of a sequence.

    Raises
    ------
    ShapeError
        Shapes do not fit each other.
    """
    require_rank("token_shift", "x", x, 2, 2)
    require_dtype("token_shift", "x", x, FLOATS)
    # A convolution of two taps that takes only the earlier value.
    return _launch("token_shift", x, x, x, state, runs, 2, {"SHIFT": True})


@token_shift.reference
def token_shift_reference(x: Array, state: Array, runs: Array) -> Array:
    """Return each token's predecessor in its sequence."""

    def step(token: int, before: Array) -> tuple[Array, Array]:
        return before[0], x[token : token + 1]

    return scan_runs_reference(state, runs, np.zeros(x.shape, np.float32), step)


def _launch(
    name: str,
    x: Node,
    weight: Node,
    bias: Node,
    state: Node,
    runs: Node,
    taps: int,
    choices: Mapping[str, bool],
) -> Launch:
    tokens, channels = x.spec.shape
    sequences = require_runs(name, runs)
    slots = require_state(name, state, (taps - 1, channels))
    return Launch(
        Spec.dense((tokens, channels), F32),
        {"x": x, "weight": weight, "bias": bias, "state": state, "runs": runs},
        # Steps of a sequence depend on each other, channels do not.
        threads=sequences * channels,
        params={
            "size": sequences * channels,
            "channels": channels,
            "sequences": sequences,
            "tokens": tokens,
            "slots": slots,
            "x_strides": pad_to_4d(x.spec.strides, 0),
            "weight_strides": pad_to_4d(weight.spec.strides, 0),
            "bias_strides": pad_to_4d(bias.spec.strides, 0),
        },
        choices={"TAPS": taps, "BEFORE": taps - 1, **choices},
        writes=("state",),
        work=(4 + taps) * x.spec.size,
    )
