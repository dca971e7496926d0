"""The storage of tensors on a device: weights in shared buffers, states in their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from wgpu_backend.device.buffers import Binding, Buffer, Texture
from wgpu_backend.device.device import Device
from wgpu_backend.device.memory import Purpose
from wgpu_backend.dtypes import DType
from wgpu_backend.errors import DeviceError
from wgpu_backend.graph.capabilities import TEXEL_ROW_NBYTES, Capabilities
from wgpu_backend.graph.memory import SLACK
from wgpu_backend.graph.node import Node, Storage
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.wgpu.weight_rows import Rows
from wgpu_backend.ops.layouts.layout import WeightLayout
from wgpu_backend.ops.layouts.planes import (
    align,
    codebook,
    join_planes,
    nonfinite_blocks,
    plane_nbytes,
    plane_ranges,
    planes,
    require_finite,
    stored_nbytes,
)
from wgpu_backend.ops.layouts.super_blocks import Bytes

# Shared buffers double from the first to the second: small models stay small.
FIRST_BUFFER_NBYTES, SHARED_BUFFER_NBYTES = 4 << 20, 64 << 20
# Bytes uploaded at once: as much as is read from a file at once.
CHUNK_NBYTES = 8 << 20
# Parts and chunks begin at even rows, so that two-byte scales begin at whole words.
ROW_STEP = 8


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a tensor that one dispatch can bind: a range of a buffer for each plane.

    Or the buffers or textures of the weight's layout; planes are added once an op needs them.
    """

    first_row: int
    rows: int
    planes: dict[str, Binding]
    packed: dict[str, Binding] = field(default_factory=dict[str, Binding])


def whole_part(spec: Spec, rows: int, buffer: Buffer) -> Part:
    """Return a whole tensor as one part, in a buffer of its own."""
    ranges = plane_ranges(spec)
    return Part(0, rows, {name: Binding(buffer, at, size) for name, (at, size) in ranges.items()})


def find_part(node: Node, parts: tuple[Part, ...]) -> tuple[tuple[Part, ...], int]:
    """Return the part that holds a slice of a split weight, and the elements before that part.

    All parts and 0 where the node looks at several.
    """
    dtype = node.spec.dtype
    # An empty slice lies in any part.
    if len(parts) > 1 and node.spec.size:
        rows = sum(part.rows for part in parts)
        width = node.storage.nbytes // dtype.block_nbytes * dtype.block // rows
        for part in parts:
            first = part.first_row * width
            if first <= node.spec.offset and node.spec.span <= first + part.rows * width:
                return (part,), first
    return parts, 0


def whole_binding(node: Node, parts: tuple[Part, ...]) -> Binding:
    """Return the binding of a dense tensor, not in blocks, that covers its whole storage."""
    ((at,),) = (part.planes.values() for part in parts)
    # Copies take whole words; storages have slack after their last value.
    return Binding(at.buffer, at.offset, -(-node.spec.nbytes // 4) * 4)


def intermediate(spec: Spec) -> Storage:
    """Make storage for the result of an op."""
    return Storage(stored_nbytes(spec), "intermediate")


def plane_reads(dtype: DType, blocks: int, part: Part) -> list[Binding]:
    """Return the range to read of each plane for `blocks` blocks: whole words."""
    sizes = plane_nbytes(dtype)
    return [
        Binding(at.buffer, at.offset, max(-(-blocks * sizes[name] // 4) * 4, 4))
        for name, at in part.planes.items()
    ]


def join_blocks(dtype: DType, blocks: int, data: Sequence[bytes | memoryview]) -> Bytes:
    """Return blocks, (n, block_nbytes), joined from the bytes of their planes."""
    sizes = plane_nbytes(dtype).items()
    return join_planes(
        {
            name: np.frombuffer(plane, np.uint8, blocks * nbytes).reshape(blocks, nbytes)
            for plane, (name, nbytes) in zip(data, sizes, strict=True)
        }
    )


class WeightStore:
    """A store that packs weights into shared buffers, which are only read.

    Parameters
    ----------
    purpose : str
        ``weights``, or ``host weights`` for the host's memory. Textures are the device's always:
        only rasterisers take them, whose memory is the host's.
    shared : bool
        Off gives each plane a buffer of its own.
    """

    def __init__(
        self, device: Device, purpose: Purpose = "weights", *, shared: bool = True
    ) -> None:
        self._device = device
        self._purpose: Purpose = purpose
        # Larger planes would leave too much of a shared buffer unused.
        self._largest_shared = SHARED_BUFFER_NBYTES // 4 if shared else 0
        self._buffers: list[Buffer] = []
        self._shared: Buffer | None = None
        self._used = 0
        self._capacity = FIRST_BUFFER_NBYTES
        self._codebooks: dict[DType, Binding] = {}

    def add(
        self,
        spec: Spec,
        source: Rows,
        label: str,
        limits: Capabilities,
        layout: WeightLayout | None = None,
    ) -> tuple[Part, ...]:
        """Upload one weight, in as many parts as the device's bindings need.

        It lies in planes, or as a layout packs it.

        Raises
        ------
        DeviceError
            Not even a few rows fit into one binding.
        ModelError
            A scale, or a value of a plain type, is NaN or infinite.
        """
        # Bindings need a buffer, also of a weight without values.
        if not spec.size:
            return (self._part(spec.dtype, 0, 0, 0, label),)
        rows, row_nbytes = source.shape
        parts: list[Part] = []
        bad = 0
        for first, stop in _ranges(rows, row_nbytes, label, limits, layout):
            if layout is None:
                part = self._part(spec.dtype, row_nbytes, first, stop - first, label)
                bad += self._fill(spec.dtype, source, part)
            else:
                part = self._pack_part(layout, first, stop - first, label)
                bad += self._pack(spec.dtype, source, layout, part)
            parts.append(part)
        require_finite(label, bad, rows * row_nbytes // spec.dtype.block_nbytes)
        return tuple(parts)

    def unfold(self, dtype: DType, source: Rows, part: Part, label: str) -> None:
        """Write packed rows as planes, too, for an op that does not know their layout."""
        made = self._part(dtype, source.shape[1], part.first_row, part.rows, label)
        self._fill(dtype, source, made)
        part.planes.update(made.planes)

    def _part(self, dtype: DType, row_nbytes: int, first: int, rows: int, label: str) -> Part:
        blocks = rows * (row_nbytes // dtype.block_nbytes)
        where = {
            name: self._reserve(blocks * nbytes, label)
            for name, nbytes in plane_nbytes(dtype).items()
        }
        return Part(first, rows, {**where, **self._codebook(dtype)})

    def _pack_part(self, layout: WeightLayout, first: int, rows: int, label: str) -> Part:
        """Reserve a part whose rows are to be packed."""
        nbytes = layout.nbytes(rows)
        if layout.home == "buffer":
            return Part(first, rows, {}, {layout.binding: self._reserve(nbytes, label)})
        texture = self._device.texture(
            nbytes // TEXEL_ROW_NBYTES, purpose=self._purpose, label=label
        )
        self._buffers.append(texture)
        return Part(first, rows, {}, {layout.binding: Binding(texture, 0, texture.nbytes)})

    def _pack(self, dtype: DType, source: Rows, layout: WeightLayout, part: Part) -> int:
        """Write rows of a part as their layout packs them, see `_fill`."""
        at = part.packed[layout.binding]
        bad = 0
        for rows, offset, packed in layout.chunks(source, part.first_row, part.rows, CHUNK_NBYTES):
            bad += nonfinite_blocks(dtype, rows.reshape(-1, dtype.block_nbytes))
            if isinstance(at.buffer, Texture):
                self._device.write_texel_rows(at.buffer, packed, offset // TEXEL_ROW_NBYTES)
            else:
                self._device.write(at.buffer, packed, at.offset + offset)
        return bad

    def _codebook(self, dtype: DType) -> dict[str, Binding]:
        """Return the plane that all tensors of a format share; upload it with the first of them."""
        book = codebook(dtype)
        if book is None:
            return {}
        # A codebook depends on the format alone, so weights share one.
        if dtype not in self._codebooks:
            self._codebooks[dtype] = at = self._reserve(book.nbytes, "codebook")
            self._device.write(at.buffer, book, at.offset)
        return {"grid": self._codebooks[dtype]}

    def _fill(self, dtype: DType, source: Rows, part: Part) -> int:
        """Write a part's rows chunk by chunk, and count the blocks that are not finite."""
        rows, row_nbytes = part.rows, source.shape[1]
        blocks = row_nbytes // dtype.block_nbytes
        step = max(ROW_STEP, CHUNK_NBYTES // row_nbytes // ROW_STEP * ROW_STEP)
        bad = 0
        for start in range(0, rows, step):
            first, stop = part.first_row + start, part.first_row + min(start + step, rows)
            chunk = source[first:stop].reshape(-1, dtype.block_nbytes)
            bad += nonfinite_blocks(dtype, chunk)
            for name, plane in planes(dtype, chunk).items():
                at = part.planes[name]
                offset = at.offset + start * blocks * plane.shape[1]
                self._device.write(at.buffer, np.ascontiguousarray(plane), offset)
        return bad

    def _reserve(self, nbytes: int, label: str) -> Binding:
        """Reserve a range of a shared buffer; a large plane gets a buffer of its own."""
        size = align(nbytes + SLACK)
        if size > self._largest_shared:
            return Binding(self._buffer(size, label), 0, size)
        if self._shared is None or self._used + size > self._shared.nbytes:
            largest = self._device.capabilities.max_buffer_nbytes
            self._shared = self._buffer(min(max(self._capacity, size), largest), "weights")
            self._capacity = min(2 * self._capacity, SHARED_BUFFER_NBYTES)
            self._used = 0
        offset, self._used = self._used, self._used + size
        return Binding(self._shared, offset, size)

    def _buffer(self, nbytes: int, label: str) -> Buffer:
        self._buffers.append(self._device.buffer(nbytes, purpose=self._purpose, label=label))
        return self._buffers[-1]

    def close(self) -> None:
        """Release the buffers; calling it again is harmless."""
        for buffer in self._buffers:
            buffer.release()
        self._buffers.clear()
        self._shared = None


def _ranges(
    rows: int, row_nbytes: int, label: str, limits: Capabilities, layout: WeightLayout | None
) -> Iterator[tuple[int, int]]:
    """Yield the rows of each part that a binding can show: the first, and one past the last."""
    # Each part has slack of its own: kernels read whole vectors at its end.
    largest = min(limits.max_binding_nbytes, limits.max_buffer_nbytes) - align(SLACK)
    count = min(largest // row_nbytes, layout.most_rows(limits) if layout else rows)
    step = max(ROW_STEP, layout.slice_rows if layout else 1)
    # A single part may have any number of rows.
    if count < rows:
        count -= count % step
    if count < 1:
        raise DeviceError(
            f"{label}: {step} rows take {step * row_nbytes} bytes, one binding of the "
            f"device shows {limits.max_binding_nbytes}"
        )
    for first in range(0, rows, count):
        yield first, min(first + count, rows)


class SharedSlots:
    """A set of buffers for intermediates, shared by all recorded graphs of a backend."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._buffers: list[Buffer] = []

    def take(self, sizes: tuple[int, ...]) -> list[Buffer]:
        """Return distinct buffers of at least these sizes."""
        # The largest slot takes the largest buffer: if it does not fit, no buffer does.
        free = sorted(self._buffers, key=lambda b: -b.nbytes)
        taken: dict[int, Buffer] = {}
        for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
            if free and free[0].nbytes >= sizes[index]:
                taken[index] = free.pop(0)
            else:
                taken[index] = self._new(sizes[index])
        return [taken[i] for i in range(len(sizes))]

    def _new(self, nbytes: int) -> Buffer:
        buffer = self._device.buffer(nbytes, purpose="activations", label="shared slot")
        self._buffers.append(buffer)
        return buffer

    def close(self) -> None:
        """Release the buffers; calling it again is harmless."""
        for buffer in self._buffers:
            buffer.release()
        self._buffers.clear()
