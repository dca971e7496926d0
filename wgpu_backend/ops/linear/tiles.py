"""Tiles that kernels of products may have: a default each, and what tuning may choose instead.

Which is the fastest hangs on the device, the format and the number of columns. `chosen` is how a
product asks; `wgpu-backend tune` measures the candidates and puts the best into Capabilities.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from wgpu_backend.device_info import Capabilities, Tile
from wgpu_backend.dtypes import DType

Class = Literal["one", "few", "many"]
CLASSES: tuple[Class, ...] = ("one", "few", "many")
FEW = 8  # columns


def _vector_tiles() -> dict[Class, tuple[Tile, ...]]:
    """Tiles of hardware: more rows than four have room in registers beside one column alone."""
    threads = (64, 32, 128)
    return {
        "one": tuple(Tile(rows, 1, t) for t in threads for rows in (4, 8, 2, 1)),
        "few": tuple(Tile(rows, FEW, t) for t in threads for rows in (4, 2, 1)),
    }


# By kernel and class of columns: the default, followed by what else may be chosen. Families add
# those of their kernels.
_VECTORS = ("matvec", "matvec_q8")
TILES: dict[str, Mapping[Class, tuple[Tile, ...]]] = dict.fromkeys(_VECTORS, _vector_tiles())


def class_of(columns: int) -> Class:
    """Class of a number of columns."""
    if columns <= 1:
        return "one"
    return "few" if columns <= FEW else "many"


def key(shader: str, dtype: DType, columns: int) -> str:
    """Name of what is tuned together: a kernel, a format, a class of columns."""
    return f"{shader} {dtype.name} {class_of(columns)}"


def candidates(name: str, capabilities: Capabilities) -> tuple[Tile, ...]:
    """Tiles of a key that a device can take, the default first; none where there is no choice."""
    shader, _, rest = name.partition(" ")
    found = TILES.get(shader, {})
    tiles = [tile for c in CLASSES if rest.endswith(f" {c}") for tile in found.get(c, ())]
    return (*tiles[:1], *(tile for tile in tiles[1:] if _fits(shader, tile, capabilities)))


def _fits(shader: str, tile: Tile, capabilities: Capabilities) -> bool:
    if tile.threads > capabilities.max_workgroup_invocations:
        return False
    if shader not in _VECTORS:
        return True  # how much memory a tile takes hangs on the format, which a product looks at
    # Of a column a thread sums two rows or more, since they may be joined, and squares where a norm
    # is made; memory holds these, one more of each sum, parts of them, and perhaps a table.
    sums = tile.columns * (max(tile.rows, 2) + (shader == "matvec_q8"))
    nbytes = 4 * (tile.threads + 1) * (sums + 1) + 1024
    return nbytes <= capabilities.max_workgroup_nbytes


def tuned_tile(capabilities: Capabilities, shader: str, dtype: DType, columns: int) -> Tile | None:
    """Tile of a product that was measured to be the fastest, if any was measured."""
    return capabilities.tuned.get(key(shader, dtype, columns))


def chosen(capabilities: Capabilities, shader: str, dtype: DType, columns: int) -> Tile:
    """Tile of a product: what was measured to be the fastest, or the default."""
    measured = tuned_tile(capabilities, shader, dtype, columns)
    return measured or TILES[shader][class_of(columns)][0]


def even_share(columns: int, most: int) -> int:
    """Columns of a tile, so that tiles of at most so many share all of them evenly."""
    return -(-columns // max(-(-columns // most), 1)) or 1
