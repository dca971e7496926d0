"""Tiles that kernels of products may have: a default each, and what tuning may choose instead.

Which is the fastest depends on the device, the format and the number of columns. `select_tile` is
how a product asks; `wgpu-backend tune` measures the candidates and puts the best into Capabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from wgpu_backend.dtypes import DType
from wgpu_backend.graph.capabilities import Capabilities, Tile

Class = Literal["one", "few", "many"]
CLASSES: tuple[Class, ...] = ("one", "few", "many")
FEW = 8  # columns


def _always(tile: Tile, capabilities: Capabilities) -> bool:
    """Whether a device takes a tile that says no more than how many threads it has."""
    return True


class Tiles(NamedTuple):
    """Tiles of a kernel.

    Parameters
    ----------
    by_class : mapping of Class to sequence of Tile
        By the columns of a product: the default, followed by what else may be chosen.
    fits : callable
        Whether a device takes a tile, beside its threads. How much memory a tile takes may hang on
        the format, which only a product knows: it then looks at what was chosen.
    """

    by_class: Mapping[Class, Sequence[Tile]]
    fits: Callable[[Tile, Capabilities], bool] = _always


# By kernel: families add those of theirs.
TILES: dict[str, Tiles] = {}


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
    if shader not in TILES:
        return ()
    found = TILES[shader]
    tiles = [t for c in CLASSES if rest.endswith(f" {c}") for t in found.by_class.get(c, ())]
    most = capabilities.max_workgroup_invocations
    others = (t for t in tiles[1:] if t.threads <= most and found.fits(t, capabilities))
    return (*tiles[:1], *others)


def tuned_tile(capabilities: Capabilities, shader: str, dtype: DType, columns: int) -> Tile | None:
    """Tile of a product that was measured to be the fastest, if any was measured."""
    return capabilities.tuned.get(key(shader, dtype, columns))


def select_tile(capabilities: Capabilities, shader: str, dtype: DType, columns: int) -> Tile:
    """Tile of a product: what was measured to be the fastest, or the default."""
    measured = tuned_tile(capabilities, shader, dtype, columns)
    return measured or TILES[shader].by_class[class_of(columns)][0]


def even_share(columns: int, most: int) -> int:
    """Columns of a tile, so that tiles of at most so many share all of them evenly."""
    return -(-columns // max(-(-columns // most), 1)) or 1
