"""Products whose weight has a gate above a projection: what the kernels for them share."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import DeviceError, ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import require
from wgpu_backend.ops.linear.attributes import SUMS, attributes_of

GATES = ("silu", "gelu", "gelu_erf", "quick_gelu", "relu")


def fits_gated(weight: Node) -> bool:
    """Whether products that join two halves of a weight take it: its rows lie in one binding."""
    return len(weight.spec.shape) == 2 and weight.spec.shape[0] % 2 == 0 and lies_whole(weight)


def lies_whole(weight: Node) -> bool:
    """Whether one binding shows all rows of a weight."""
    return _parts(weight) < 2


def _parts(weight: Node) -> int:
    """Bindings that a weight lies in; what the host keeps is no tuple."""
    handle: object = weight.storage.handle
    return len(cast("tuple[object, ...]", handle)) if isinstance(handle, tuple) else 1


def gated(name: str, launch: Launch, activation: str) -> Launch:
    """Launch of a product, with halves of rows joined by an activation.

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
    """Rows of the weight that make one of the result."""
    return 2 if launch.choices.get("GATED") else 1


def require_whole(launch: Launch) -> None:
    """Refuse a weight of which a dispatch sees too little: halves, or groups of rows, are apart.

    Raises
    ------
    DeviceError
        It lies in several bindings.
    """
    weight = launch.operands["weights"]
    joins = attributes_of(launch).epilogue != SUMS
    if joins and not lies_whole(weight):
        raise DeviceError(
            f"product that joins rows: the weight of {weight.spec.shape} lies in {_parts(weight)} "
            f"bindings of the device, needs one"
        )
