"""Weights whose rows a device has in images: which kernels may read them there."""

from __future__ import annotations

from wgpu_backend.device_info import Capabilities
from wgpu_backend.dtypes import F16
from wgpu_backend.graph.node import Launch
from wgpu_backend.ops.gates import joined_rows

QUADS_OF_TEXELS, QUADS_OF_GROUPS = 4, 8  # of a texel's bytes, and of 32 values, see shaders/tiled
RAISED_HALVES = 51  # half of the power of two that F16 lacks there, see `ml.halves`


def lies_in_image(launch: Launch, operand: str, capabilities: Capabilities) -> bool:
    """Whether an operand is whole rows of a weight that lies in an image, see `ml.packing`."""
    node = launch.operands[operand]
    cols, step = node.storage.image_cols, node.storage.slice_rows
    return (
        capabilities.telling_lanes
        and cols > 0
        and node.spec.is_dense
        and node.spec.shape[-1] == cols
        and node.spec.offset % (cols * step) == 0
        and (joined_rows(launch) == 1 or launch.count("m") % step == 0)
    )


def in_image(launch: Launch, operand: str, texels: int = 1) -> dict[str, str | int]:
    """Choices of a kernel whose imports can read an operand from an image.

    Parameters
    ----------
    launch : Launch
    operand : str
    texels : int
        Taken at once: one leaves room in registers, all four of 32 values in f16 are the faster
        the longer those who load them compute with them.
    """
    dtype = launch.operands[operand].spec.dtype
    if dtype.quantised:
        return {"source": "source/stream", operand: f"stream/{dtype}"}
    quads = QUADS_OF_TEXELS // dtype.block_nbytes * texels
    raised = {"RAISED": RAISED_HALVES} if dtype == F16 else {}
    return {
        **raised,
        "source": f"tiled/{dtype}",
        operand: "rasteriser/texels",
        "TEXELS": texels,
        "source_QUADS": quads,
        "source_PARTS": QUADS_OF_GROUPS // quads,
    }
