"""The refusal of ops that only some families have kernels for."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from wgpu_backend.errors import DeviceError
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.node import Launch


def no_kernel(op: str, needs: str, instead: str) -> Callable[[Launch, Capabilities], NoReturn]:
    """Return a selector that raises DeviceError, for ops without a portable kernel.

    Parameters
    ----------
    needs : str
        What has one.
    instead : str
        Ops that every device has.
    """

    def refuse(launch: Launch, _: Capabilities) -> NoReturn:
        shapes = ", ".join(str(node.spec.shape) for node in launch.operands.values())
        raise DeviceError(
            f"{op}: the device has no kernel for operands of {shapes}, needs {needs}; use {instead}"
        )

    return refuse
