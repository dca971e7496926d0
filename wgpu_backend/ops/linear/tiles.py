"""Tile sizes of product kernels: a default for each, and the candidates of tuning.

Which is the fastest depends on the device, the format and the number of columns. A product calls
`select_tile`; `wgpu-backend tune` measures the candidates and puts the best into Capabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from wgpu_backend.dtypes import DType
from wgpu_backend.graph.capabilities import Capabilities, Tile

Class = Literal["one", "few", "many"]
CLASSES: tuple[Class, ...] = ("one", "few", "many")
# Columns.
FEW = 8


def _always(tile: Tile, capabilities: Capabilities) -> bool:
    """Return whether a device allows the tile's number of threads."""
    return True


class Tiles(NamedTuple):
    """The tiles of a kernel.

    Parameters
    ----------
    by_class : mapping of Class to sequence of Tile
        By the columns of a product: the default, followed by what else may be chosen.
    fits : callable
        Returns whether a device takes a tile, apart from its threads. The memory of a tile may
        depend on the format, which only a product has: it then checks the chosen tile itself.
    """

    by_class: Mapping[Class, Sequence[Tile]]
    fits: Callable[[Tile, Capabilities], bool] = _always


# By kernel: families add those of theirs.
TILES: dict[str, Tiles] = {}


def column_class(columns: int) -> Class:
    """Return whether a product has one, few or many columns."""
    if columns <= 1:
        return "one"
    return "few" if columns <= FEW else "many"


def key(shader: str, dtype: DType, columns: int) -> str:
    """Return the key of tuning results: kernel, format and class of columns."""
    return f"{shader} {dtype.name} {column_class(columns)}"


def candidates(name: str, capabilities: Capabilities) -> tuple[Tile, ...]:
    """Return the tiles of a key that a device can run, the default first; () if unknown."""
    shader, _, rest = name.partition(" ")
    if shader not in TILES:
        return ()
    found = TILES[shader]
    tiles = [t for c in CLASSES if rest.endswith(f" {c}") for t in found.by_class.get(c, ())]
    most = capabilities.max_workgroup_invocations
    # Every device runs the default.
    others = (t for t in tiles[1:] if t.threads <= most and found.fits(t, capabilities))
    return (*tiles[:1], *others)


def tuned_tile(capabilities: Capabilities, shader: str, dtype: DType, columns: int) -> Tile | None:
    """Return the tile measured to be the fastest for a product; None if none was measured."""
    return capabilities.tuned.get(key(shader, dtype, columns))


def select_tile(capabilities: Capabilities, shader: str, dtype: DType, columns: int) -> Tile:
    """Return the tile of a product: the fastest measured, or the default."""
    measured = tuned_tile(capabilities, shader, dtype, columns)
    return measured or TILES[shader].by_class[column_class(columns)][0]


def even_share(columns: int, most: int) -> int:
    """Return the columns of a tile, at most `most`, that share all columns evenly."""
    # 9 columns in tiles of at most 8 are 5 and 4, not 8 and 1.
    return -(-columns // max(-(-columns // most), 1)) or 1
