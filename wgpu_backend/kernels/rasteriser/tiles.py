"""Tiles of products of this family: a lane makes rows by itself, in work groups of eight."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from wgpu_backend.graph.capabilities import Tile
from wgpu_backend.kernels.rasteriser.capabilities import LANES
from wgpu_backend.ops.linear.tiles import CLASSES, TILES, Class, Tiles


def _lane_tiles(
    *defaults: Tile, rows: tuple[int, ...], columns: tuple[int, ...]
) -> dict[Class, tuple[Tile, ...]]:
    """Return defaults for one, few and many columns, each followed by the other candidates."""
    others = [Tile(r, c, LANES) for r, c in product(rows, columns)]
    alone = [Tile(r, 1, LANES) for r in rows]
    return {
        name: tuple(dict.fromkeys([default, *(alone if name == "one" else others)]))
        for name, default in zip(CLASSES, defaults, strict=True)
    }


# Rows of lanes are even, since two rows of a weight may be joined.
_OF_LANES: Mapping[str, Mapping[Class, tuple[Tile, ...]]] = {
    "matmul": _lane_tiles(
        Tile(2, 1, LANES), Tile(4, 4, LANES), Tile(4, 4, LANES), rows=(2, 4), columns=(4, 8)
    ),
    "matmul_shuffled": _lane_tiles(
        Tile(2, 1, LANES), Tile(2, 8, LANES), Tile(2, 8, LANES), rows=(2, 4), columns=(4, 8)
    ),
    "matmul_texture": _lane_tiles(
        Tile(8, 1, LANES), Tile(8, 4, LANES), Tile(4, 8, LANES), rows=(2, 4, 8), columns=(4, 8)
    ),
    "matmul_q8": _lane_tiles(
        Tile(4, 1, LANES), Tile(4, 4, LANES), Tile(4, 4, LANES), rows=(2, 4), columns=(4, 8)
    ),
    "matmul_q8_texture": {
        "one": (Tile(4, 1, LANES),),
        "few": (Tile(4, 8, LANES), Tile(4, 4, LANES)),
        "many": (Tile(4, 8, LANES), Tile(4, 4, LANES)),
    },
}
TILES.update({kernel: Tiles(by_class) for kernel, by_class in _OF_LANES.items()})
