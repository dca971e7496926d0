"""Weights that a device keeps in images: which, and in what order their bytes lie there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from wgpu_backend.device.buffers import LINE_NBYTES, MAX_LINES
from wgpu_backend.device_info import Capabilities
from wgpu_backend.dtypes import BF16, F16, F32, DType
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml import halves, streams, tiled
from wgpu_backend.ml.rows import Rows
from wgpu_backend.ml.super_blocks import Bytes

_GROUP = 32  # values that products take at once


@dataclass(frozen=True, slots=True)
class Packing:
    """How rows of a weight lie in an image.

    Parameters
    ----------
    name : str
        Of the binding behind the operand's, see `wgpu_storage.Part`.
    tile_rows, tile_nbytes : int
        Rows that lie together, and their bytes.
    slice_rows : int
        A slice of the weight begins at a multiple of so many rows, if kernels are to read it there.
    pack : callable
        (rows, row bytes) to the bytes of whole tiles.
    fits : callable or None
        Whether rows can be packed so; None for all that can be.
    """

    name: str
    tile_rows: int
    tile_nbytes: int
    slice_rows: int
    pack: Callable[[Bytes], Bytes]
    fits: Callable[[Bytes], bool] | None = None

    @property
    def step_rows(self) -> int:
        """Rows that are whole lines of an image."""
        return self.tile_rows * LINE_NBYTES // math.gcd(self.tile_nbytes, LINE_NBYTES)

    @property
    def most_rows(self) -> int:
        """Rows that one image holds."""
        return MAX_LINES * LINE_NBYTES // self.tile_nbytes * self.tile_rows

    def lines(self, rows: int) -> int:
        """Lines of the image for some rows."""
        tiles = -(-rows // self.tile_rows)
        return -(-tiles * self.tile_nbytes // LINE_NBYTES)

    def chunks(
        self, rows: Rows, first: int, count: int, chunk_nbytes: int
    ) -> Iterator[tuple[Bytes, int, Bytes]]:
        """Yield rows of about so many bytes, and the first line and whole lines they make."""
        step = max(1, chunk_nbytes // (rows.shape[1] * self.step_rows)) * self.step_rows
        for start in range(0, count, step):
            chunk = rows[first + start : first + min(start + step, count)]
            packed = self.pack(chunk).reshape(-1)
            odd = -len(packed) % LINE_NBYTES
            yield chunk, self.lines(start), np.pad(packed, (0, odd)) if odd else packed


def packing(spec: Spec, capabilities: Capabilities, *, rounded: bool) -> Packing | None:
    """Return how a weight goes into images, if it does: a matrix with rows of whole groups.

    Parameters
    ----------
    spec : Spec
    capabilities : Capabilities
        Of a rasteriser whose lanes tell each other values; no other reads images.
    rounded : bool
        Whether products round activations to eight bits: blocks lie as those products read them.
    """
    if not capabilities.telling_lanes or len(spec.shape) != 2 or not spec.size:
        return None
    found = _packing(spec.dtype, spec.shape[-1], rounded=rounded)
    if found is None or not found.most_rows:
        return None
    # Parts of a weight begin where slices may, and are no larger than those in buffers.
    part_nbytes = found.slice_rows * spec.dtype.nbytes(spec.shape[-1])
    return found if 2 * part_nbytes <= capabilities.max_binding_nbytes else None


def _packing(dtype: DType, cols: int, *, rounded: bool) -> Packing | None:
    """Return how rows of so many values lie in an image, however large."""
    row_nbytes = dtype.nbytes(cols)
    if dtype in (F32, F16, BF16) and cols % _GROUP == 0:
        tiles = Packing("", tiled.TILE_ROWS, tiled.TILE_ROWS * row_nbytes, 1, tiled.tiled)
        return replace(tiles, pack=_tiled_halves, fits=halves.fit) if dtype == F16 else tiles
    values = streams.row_values(dtype)
    if not rounded or not values or cols % values:
        return None
    nbytes, rows = streams.tile_nbytes(dtype, row_nbytes), streams.TILE_ROWS
    return Packing("stream", rows, nbytes, rows, partial(streams.streamed, dtype))


def _tiled_halves(rows: Bytes) -> Bytes:
    return tiled.tiled(halves.recounted(rows))
