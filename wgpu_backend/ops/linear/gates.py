"""Helpers of products whose weight stacks a gate above an up-projection."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import DeviceError, ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import require
from wgpu_backend.ops.linear.attributes import SUMS, get_attributes

GATES = ("silu", "gelu", "gelu_erf", "quick_gelu", "relu")


def fits_gated(weight: Node) -> bool:
    """Return whether a gated product takes the weight: its rows must be in one binding."""
    return len(weight.spec.shape) == 2 and weight.spec.shape[0] % 2 == 0 and lies_whole(weight)


def lies_whole(weight: Node) -> bool:
    """Return whether one binding covers all rows of a weight."""
    return _parts(weight) < 2


def _parts(weight: Node) -> int:
    """Count the bindings of a weight; the host's storage is not a tuple."""
    handle: object = weight.storage.handle
    # A dry run, and NumPy, have no tuple of parts.
    return len(cast("tuple[object, ...]", handle)) if isinstance(handle, tuple) else 1


def join_halves(name: str, launch: Launch, activation: str) -> Launch:
    """Return the launch of a product that joins halves of rows by an activation.

    Raises
    ------
    ShapeError
        The weight has no halves, or there is no such activation.
    """
    m = launch.out.shape[-1]
    require(
        m % 2 == 0 and activation in GATES,
        ShapeError,
        f"{name}: {m} rows and {activation!r}, needs an even number and one of {', '.join(GATES)}",
    )
    return replace(
        launch,
        out=Spec.dense((*launch.out.shape[:-1], m // 2), F32),
        params={**launch.params, "m": m // 2},
        choices={**launch.choices, "GATED": True, "gate": f"lib/gate/{activation}"},
    )


def joined_rows(launch: Launch) -> int:
    """Return how many rows of the weight make one row of the result."""
    return 2 if launch.choices.get("GATED") else 1


def require_whole(launch: Launch) -> None:
    """Raise DeviceError unless one binding covers the weight, whose halves are read together.

    Raises
    ------
    DeviceError
        The weight lies in several bindings.
    """
    weight = launch.operands["weights"]
    joins = get_attributes(launch).epilogue != SUMS
    if joins and not lies_whole(weight):
        raise DeviceError(
            f"gated product: the weight of {weight.spec.shape} lies in {_parts(weight)} "
            f"bindings of the device, needs one"
        )
