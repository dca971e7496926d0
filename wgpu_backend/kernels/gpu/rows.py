"""Kernels of rows on GPUs: norms, softmax, and the rounding of rows by groups of 32 values.

Lanes of a work group reduce a row together; eight lanes round a group. Groups are rounded to eight
bits, to sixteen, or to f16. In f16 a group is divided by a power of two and rounded to eleven bits.
One rounding serves all products of a tensor.
"""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.kernels.gpu.subgroups import eight_lanes
from wgpu_backend.kernels.refusal import no_kernel
from wgpu_backend.ops.check import require_rank, require_row
from wgpu_backend.ops.linear.f16_groups import (
    f16_activations_reference,
    f16_spec,
    f16_weighted_reference,
)
from wgpu_backend.ops.linear.q8_rounding import GROUP, require_groups
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reduce.norm import reducing_rows

NORMS = ("rms_norm", "rms_norm_add", "norm_chain", "layer_norm", "softmax", "l2_norm")
# Values from which on more threads share a row.
LONG_ROW = 1024
THREADS = 256


def by_subgroups(launch: Launch, _: Capabilities) -> Launch:
    """Return a launch that reduces rows by subgroups, with two barriers in all."""
    return _share_rows(launch, launch.count("cols"))


def pair(launch: Launch, _: Capabilities) -> Launch:
    """Return the launch of a norm that rounds to two 8-bit parts, with eight lanes a group."""
    found = replace(launch, shader="kernels/gpu/rms_norm_pair")
    return _share_rows(found, GROUP * launch.count("groups"))


def _share_rows(launch: Launch, cols: int) -> Launch:
    """Return a launch of one work group per row, with a thread count that suits its length."""
    launch = reducing_rows(launch, "kernels/gpu/lib/row_subgroups")
    if cols < LONG_ROW:
        return launch
    return replace(launch, choices={**launch.choices, "WG": THREADS})


# Lanes that round one group of 32 values.
LANES = 8
IN_Q16 = {"rounding": "kernels/gpu/lib/round_q16"}


def by_eight_lanes(launch: Launch, capabilities: Capabilities) -> Launch:
    """Round with eight lanes for each group of 32 values; one lane each would leave most idle."""
    params = {"groups": launch.operands["x"].spec.shape[-1] // GROUP, **launch.params}
    choices = {**launch.choices, "WEIGHTED": "weight" in launch.operands}
    if "weight" not in launch.operands:
        params["weight_offset"] = 0
        # The kernel declares a weight and then never reads it.
        choices["weight"] = "=x"
    choices |= eight_lanes(capabilities)
    return replace(
        launch,
        shader="kernels/gpu/rounded_groups",
        # One lane a group takes 363 instructions, eight lanes take 155 (RADV, navi31).
        threads=LANES * launch.count("size"),
        params=params,
        choices=choices,
    )


def to_q16_by_eight_lanes(launch: Launch, capabilities: Capabilities) -> Launch:
    """Round to sixteen bits with neighbouring lanes on neighbouring values."""
    found = by_eight_lanes(launch, capabilities)
    return replace(found, choices={**found.choices, **IN_Q16})


SHADER = "kernels/gpu/rounded_groups"
ROUNDING = {"rounding": "kernels/gpu/lib/round_f16"}
NEEDS = "a GPU with arithmetic in f16"


@op(
    select=no_kernel("f16_activations", NEEDS, "q8_activations, or the values as they are"),
    shader=SHADER,
    dense=("x",),
    trusted=True,
)
def f16_activations(x: Node, *, planar: bool = False, nibbles: bool = False) -> Launch:
    """Round groups of 32 values to f16, for `linear`.

    Parameters
    ----------
    x : (..., k), f32
        `k` a multiple of 32. A group of no magnitude above 2^-100 counts as zero; one with an
        infinity or NaN makes every product with it NaN.
    planar : bool
        Put each vector of four words of the groups into a plane of its own, which weights in blocks
        want: neighbouring lanes take neighbouring groups of these.
    nibbles : bool
        In the place of values i and i + 16 of a group, for i below 16, put the first less a
        sixteenth of the second, and that sixteenth: factors of the lower nibble and of the byte.

    Returns
    -------
    (..., k / 32, 20), u32, or planar (5, ..., k / 32, 4)
        Of each group: 32 f16 below an eighth in sixteen words, then as f32 the power of two that
        they lack, the sum of all values and of the first 16, and the sum of the squares of `x`.

    Raises
    ------
    ShapeError
        Rows are not whole groups.
    DeviceError
        When it is run: the device has no arithmetic in f16.
    """
    launch = _rounding("f16_activations", x, planar, nibbles)
    # The kernel has a weight, which it then never reads.
    return replace(
        launch,
        params={**launch.params, "weight_offset": 0},
        choices={**launch.choices, "weight": "=x"},
    )


@op(
    select=no_kernel("f16_weighted", NEEDS, "rms_norm, and q8_activations or the values"),
    shader=SHADER,
    dense=("x", "weight"),
    trusted=True,
)
def f16_weighted(x: Node, weight: Node, *, planar: bool = False, nibbles: bool = False) -> Launch:
    """Round rows as `f16_activations`, times the weight of a norm; the squares are of `x` alone.

    Parameters
    ----------
    x : (..., k)
        f32.
    weight : (k,)
        f32.
    planar, nibbles : bool
        See `f16_activations`.

    Returns
    -------
    (..., k / 32, 20), u32, or planar (5, ..., k / 32, 4)

    Raises
    ------
    ShapeError
        As `f16_activations`, or the weight is no such row.
    DeviceError
        When it is run: the device has no arithmetic in f16.
    """
    launch = _rounding("f16_weighted", x, planar, nibbles)
    require_row("f16_weighted", "weight", weight, x.spec.shape[-1])
    return replace(
        launch,
        operands={"x": x, "weight": weight},
        choices={**launch.choices, "WEIGHTED": True},
    )


def _rounding(name: str, x: Node, planar: bool, nibbles: bool) -> Launch:
    require_rank(name, "x", x, 1)
    k, rows = require_groups(name, x), x.spec.shape[:-1]
    size = x.spec.size // GROUP
    return Launch(
        f16_spec(rows, k // GROUP, planar),
        {"x": x},
        threads=LANES * size,
        params={"size": size, "groups": k // GROUP},
        choices={**ROUNDING, "PLANAR": planar, "NIBBLES": nibbles},
        work=2 * x.spec.nbytes,
    )


def to_f16_by_eight_lanes(launch: Launch, capabilities: Capabilities) -> Launch:
    """Round by eight lanes a group."""
    return replace(launch, choices={**launch.choices, **eight_lanes(capabilities)})


f16_activations.reference(f16_activations_reference)
f16_weighted.reference(f16_weighted_reference)
