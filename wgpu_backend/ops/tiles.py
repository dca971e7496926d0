"""Tiles that kernels of products may have: a default each, and what tuning may choose instead.

Which is the fastest hangs on the device, the format and the number of columns. `chosen` is how a
product asks; `wgpu-backend tune` measures the candidates and puts the best into Capabilities.
"""

from __future__ import annotations

from itertools import product
from typing import Literal

from wgpu_backend.device_info import Capabilities, Tile
from wgpu_backend.dtypes import DType

Class = Literal["one", "few", "many"]
CLASSES: tuple[Class, ...] = ("one", "few", "many")
FEW = 8  # columns
LANES = 8  # of a rasteriser's work group


def _lane_tiles(
    *defaults: Tile, rows: tuple[int, ...], columns: tuple[int, ...]
) -> dict[Class, tuple[Tile, ...]]:
    """Defaults for one, few and many columns, each followed by what else may be chosen."""
    others = [Tile(r, c, LANES) for r, c in product(rows, columns)]
    alone = [Tile(r, 1, LANES) for r in rows]
    return {
        name: tuple(dict.fromkeys([default, *(alone if name == "one" else others)]))
        for name, default in zip(CLASSES, defaults, strict=True)
    }


def _vector_tiles() -> dict[Class, tuple[Tile, ...]]:
    """Tiles of hardware: more rows than four have room in registers beside one column alone."""
    threads = (64, 32, 128)
    return {
        "one": tuple(Tile(rows, 1, t) for t in threads for rows in (4, 8, 2, 1)),
        "few": tuple(Tile(rows, FEW, t) for t in threads for rows in (4, 2, 1)),
    }


# Rows of lanes are even, since two rows of a weight may be joined.
_TILES: dict[str, dict[Class, tuple[Tile, ...]]] = {
    "mulmat_lanes": _lane_tiles(
        Tile(2, 1, LANES), Tile(4, 4, LANES), Tile(4, 4, LANES), rows=(2, 4), columns=(4, 8)
    ),
    "mulmat_told": _lane_tiles(
        Tile(2, 1, LANES), Tile(2, 8, LANES), Tile(2, 8, LANES), rows=(2, 4), columns=(4, 8)
    ),
    "mulmat_tiled": _lane_tiles(
        Tile(8, 1, LANES), Tile(8, 4, LANES), Tile(4, 8, LANES), rows=(2, 4, 8), columns=(4, 8)
    ),
    "mulmat_q8_lanes": _lane_tiles(
        Tile(4, 1, LANES), Tile(4, 4, LANES), Tile(4, 4, LANES), rows=(2, 4), columns=(4, 8)
    ),
    "mulmat_q8_stream": {
        "one": (Tile(4, 1, LANES),),
        "few": (Tile(4, 8, LANES), Tile(4, 4, LANES)),
        "many": (Tile(4, 8, LANES), Tile(4, 4, LANES)),
    },
    "matvec": _vector_tiles(),
    "matvec_q8": _vector_tiles(),
}


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
    found = _TILES.get(shader, {})
    tiles = [tile for c in CLASSES if rest.endswith(f" {c}") for tile in found.get(c, ())]
    return (*tiles[:1], *(tile for tile in tiles[1:] if _fits(shader, tile, capabilities)))


def _fits(shader: str, tile: Tile, capabilities: Capabilities) -> bool:
    # Of a column a thread sums two rows or more, since they may be joined, and squares where a norm
    # is made; memory holds these, one more of each sum, and parts of them.
    sums = tile.columns * (max(tile.rows, 2) + (shader == "matvec_q8"))
    nbytes = 4 * (tile.threads + 1) * (sums + 1)
    return capabilities.software or (
        nbytes <= capabilities.max_workgroup_nbytes
        and tile.threads <= capabilities.max_workgroup_invocations
    )


def tuned_tile(capabilities: Capabilities, shader: str, dtype: DType, columns: int) -> Tile | None:
    """Tile of a product that was measured to be the fastest, if any was measured."""
    return capabilities.tuned.get(key(shader, dtype, columns))


def chosen(capabilities: Capabilities, shader: str, dtype: DType, columns: int) -> Tile:
    """Tile of a product: what was measured to be the fastest, or the default."""
    measured = tuned_tile(capabilities, shader, dtype, columns)
    return measured or _TILES[shader][class_of(columns)][0]


def even_share(columns: int, most: int) -> int:
    """Columns of a tile, so that tiles of at most so many share all of them evenly."""
    return -(-columns // max(-(-columns // most), 1)) or 1
