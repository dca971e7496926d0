"""Weights in the host's memory, copied to the device for products of many rows.

Such a product reads a weight once for each tile of rows, which would be as often over the bus. A
kernel copies the weight into one of two slots before, while the product before that one runs::

    copy 0 to A
    copy 1 to B    product 0 of A
    copy 2 to A    product 1 of B
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from wgpu_backend.device.binds import Dispatch
from wgpu_backend.device.buffers import Binding, Buffer
from wgpu_backend.device.device import Device
from wgpu_backend.device.wgsl.module import load
from wgpu_backend.graph.node import Launch
from wgpu_backend.ops.check import grid_for
from wgpu_backend.ops.layouts.planes import align

# Products of fewer rows read a weight once or twice.
LEAST_ROWS = 65
SLOTS = 2
# Threads of a work group, and vectors of 16 bytes that each of them copies.
_WG, _VECTORS, _VECTOR_NBYTES = 256, 8, 16

Slots = Callable[[tuple[int, ...]], list[Buffer]]
Upload = Callable[[Sequence[bytes]], Sequence[Binding | None]]


def is_staged(launch: Launch) -> bool:
    """Return whether a launch reads all of a weight several times.

    Products by experts read the experts that tokens chose, and lookups the rows that were asked
    for.
    """
    weights = launch.operands.get("weights")
    if weights is None or "x" not in launch.operands or "ids" in launch.operands:
        return False
    shape = launch.out.shape
    rows = math.prod(shape[:-1])
    return len(weights.spec.shape) == 2 and len(shape) > 0 and rows >= LEAST_ROWS


@dataclass(frozen=True, slots=True)
class _Staged:
    """A dispatch and the bindings that it gets copies of, by position, with their sizes."""

    at: int
    sizes: dict[int, int]

    @property
    def nbytes(self) -> int:
        return sum(self.sizes.values())


def stage(
    device: Device,
    dispatches: Sequence[Dispatch],
    launches: Sequence[Launch],
    take: Slots,
    upload: Upload,
) -> list[Dispatch]:
    """Add copies of weights in the host's memory to dispatches.

    Parameters
    ----------
    launches : sequence of Launch
        That of each dispatch.
    take : callable
        Gives buffers of these sizes for the slots.
    upload : callable
        Uploads the parameters of kernels.
    """
    found = [
        _Staged(at, sizes)
        for at, (dispatch, launch) in enumerate(zip(dispatches, launches, strict=True))
        if is_staged(launch) and (sizes := _far_sizes(dispatch))
    ]
    if not found:
        return [*dispatches]
    slots = take((max(each.nbytes for each in found),) * min(SLOTS, len(found)))
    kernel = load("copy_words", {"WG": _WG}, trusted=True)
    pipeline = device.pipeline(kernel)
    grids = {nbytes: _grid(nbytes) for each in found for nbytes in each.sizes.values()}
    packed = {
        nbytes: kernel.pack({"vectors": nbytes // _VECTOR_NBYTES, "threads": math.prod(grid) * _WG})
        for nbytes, grid in grids.items()
    }
    params = dict(zip(packed, upload([*packed.values()]), strict=True))
    result, copies = list[Dispatch](), list[list[Dispatch]]()
    changed: dict[int, Dispatch] = {}
    for turn, each in enumerate(found):
        own, bindings, end = list[Dispatch](), [*dispatches[each.at].bindings], 0
        for position, nbytes in each.sizes.items():
            source, where = params[nbytes], Binding(slots[turn % len(slots)], end, nbytes)
            assert source is not None
            operands = (replace(bindings[position], nbytes=nbytes), where, source)
            grid = grids[nbytes]
            own.append(Dispatch(pipeline, operands, grid, "copy", 2 * nbytes))
            bindings[position] = where
            end += nbytes
        copies.append(own)
        changed[each.at] = replace(dispatches[each.at], bindings=tuple(bindings))
    turns = {each.at: turn for turn, each in enumerate(found)}
    result += copies[0]
    for at, dispatch in enumerate(dispatches):
        if at in turns and turns[at] + 1 < len(copies):
            # The product that read this slot before is two products back.
            result += copies[turns[at] + 1]
        result.append(changed.get(at, dispatch))
    return result


def _far_sizes(dispatch: Dispatch) -> dict[int, int]:
    """Return the positions of bindings in the host's memory, and whole vectors of their bytes."""
    return {
        position: align(each.nbytes or each.buffer.nbytes - each.offset)
        for position, each in enumerate(dispatch.bindings)
        if each.buffer.purpose == "host weights"
    }


def _grid(nbytes: int) -> tuple[int, int, int]:
    return grid_for(-(-nbytes // (_WG * _VECTORS * _VECTOR_NBYTES)))
