"""Weight layouts: where rows are stored on a device, in what order, and what reads them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from wgpu_backend.graph.capabilities import MAX_TEXEL_ROWS, TEXEL_ROW_NBYTES, Capabilities
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.layouts.super_blocks import Bytes

WORD_NBYTES = 4


class WeightRows(Protocol):
    """A protocol for rows of a weight as in its file: a slice is (rows, row_nbytes), uint8."""

    @property
    def shape(self) -> tuple[int, int]:
        """Return the number of rows, and the bytes of each."""
        ...

    def __getitem__(self, which: slice, /) -> Bytes:
        """Return a slice of rows, (rows, row_nbytes), uint8."""
        ...


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """A layout of the rows of one weight, other than planes.

    It is decided when the weight is loaded (`wgpu_backend.kernels.table.select_layout`), and its
    storage carries it to the kernels.

    Parameters
    ----------
    name : str
        By which kernels know it.
    home : str
        ``texture`` or ``buffer``: what holds it.
    binding : str
        Suffix of its binding, after the operand's name; in a buffer not one of a plane.
    cols : int
        Values of a row.
    tile_rows, tile_nbytes : int
        Rows that lie together, and their bytes, a multiple of 4.
    pack : callable
        (rows, row_nbytes) of a GGUF file to the bytes of whole tiles, uint8.
    slice_rows : int
        Kernels can read slices of the weight there that begin at a multiple of so many rows.
    accepts : callable or None
        Whether (rows, row_nbytes) can be packed so; None where all can be.
    modules : mapping of str to str
        WGSL that reads it, by the names under which kernels import it.
    constants : mapping of str to int
        Numbers of the layout that the WGSL needs, as choices of a shader.
    for_bytes : bool
        Products of activations in bytes read it faster than those of f32 do.
    """

    name: str
    home: Literal["texture", "buffer"]
    binding: str
    cols: int
    tile_rows: int
    tile_nbytes: int
    pack: Callable[[Bytes], Bytes]
    slice_rows: int = 1
    accepts: Callable[[Bytes], bool] | None = None
    modules: Mapping[str, str] = field(default_factory=dict[str, str])
    constants: Mapping[str, int] = field(default_factory=dict[str, int])
    for_bytes: bool = False

    @property
    def _unit_nbytes(self) -> int:
        """Return the bytes that are written at once: a row of a texture's texels, or a word."""
        return TEXEL_ROW_NBYTES if self.home == "texture" else WORD_NBYTES

    @property
    def step_rows(self) -> int:
        """Return the fewest rows that are both whole tiles and whole rows of texels."""
        unit = self._unit_nbytes
        # The least common multiple of both, in rows.
        return self.tile_rows * unit // math.gcd(self.tile_nbytes, unit)

    def most_rows(self, capabilities: Capabilities) -> int:
        """Return the most rows that one binding of a device covers."""
        texture, buffer = MAX_TEXEL_ROWS * TEXEL_ROW_NBYTES, capabilities.max_binding_nbytes
        # Only whole tiles can be addressed.
        nbytes = texture if self.home == "texture" else buffer
        return nbytes // self.tile_nbytes * self.tile_rows

    def nbytes(self, rows: int) -> int:
        """Return the bytes of `rows` rows: whole tiles, and whole rows of texels."""
        unit = self._unit_nbytes
        return -(-self._tiles_nbytes(rows) // unit) * unit

    def _tiles_nbytes(self, rows: int) -> int:
        return -(-rows // self.tile_rows) * self.tile_nbytes

    def takes(self, rows: WeightRows, chunk_nbytes: int) -> bool:
        """Return whether all rows can be packed, checking `chunk_nbytes` at a time."""
        accepts = self.accepts
        if accepts is None:
            return True
        step = max(1, chunk_nbytes // rows.shape[1])
        return all(accepts(rows[at : at + step]) for at in range(0, rows.shape[0], step))

    def chunks(
        self, rows: WeightRows, first: int, count: int, chunk_nbytes: int
    ) -> Iterator[tuple[Bytes, int, Bytes]]:
        """Yield rows of about `chunk_nbytes`, and the offset and bytes of their packed form."""
        # Chunks begin at a whole tile and a whole row of texels, so each is written alone.
        step = max(1, chunk_nbytes // (rows.shape[1] * self.step_rows)) * self.step_rows
        for start in range(0, count, step):
            chunk = rows[first + start : first + min(start + step, count)]
            packed = self.pack(chunk).reshape(-1)
            odd = self.nbytes(len(chunk)) - len(packed)
            yield chunk, self._tiles_nbytes(start), np.pad(packed, (0, odd)) if odd else packed

    def shows(self, spec: Spec) -> bool:
        """Return whether a view of the weight is whole rows that kernels can address."""
        whole = spec.is_dense and spec.shape[-1] == self.cols
        return whole and spec.offset % (self.cols * self.slice_rows) == 0


class Offer(Protocol):
    """A function by which a kernel family offers a layout for a weight."""

    def __call__(
        self, spec: Spec, capabilities: Capabilities, *, rounded: bool
    ) -> WeightLayout | None:
        """Return the layout for a weight; None if the family has none.

        Parameters
        ----------
        spec : Spec
            Of the weight: type and shape decide.
        rounded : bool
            Whether products may round activations to eight bits.
        """
        ...


def find_layout(node: Node) -> WeightLayout | None:
    """Return the layout of the weight that a node views; None for planes, and for other nodes."""
    layout = node.storage.layout
    return layout if isinstance(layout, WeightLayout) else None
