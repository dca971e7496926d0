"""The cache entries of a layer: the data it caches of past tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from wgpu_backend.dtypes import F16, F32, Q4_0, Q8_0, DType
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.module import old_names

CACHE_TYPES = (F16, F32, Q8_0, Q4_0)

Turn = Callable[[Tensor, int], Tensor]
"""A function that moves keys of a layer, (positions, key) f32, by so many positions."""


def keep_keys(keys: Tensor, by: int) -> Tensor:
    """Return the keys unchanged: the `Turn` of keys that do not depend on their position."""
    return keys


@old_names(stored="columns")
@dataclass(frozen=True, slots=True)
class LayerShape:
    """Keys and values of every position.

    Parameters
    ----------
    key : int
        Numbers that the keys of one position take, over all heads.
    value : int or None
        The same for values; None where values are the first columns of keys, stored once.
    window : int
        Most positions that a token of the layer attends to, itself included; 0 for all.
    chunk : int
        A token attends to no position before the last multiple of this; 0 for all.
    turn : callable or None
        Moves keys to other positions, `keep_keys` if they do not depend on positions; None if they
        cannot move, as with learned positions.
    """

    key: int
    value: int | None
    window: int = 0
    chunk: int = 0
    turn: Turn | None = field(default=None, compare=False)

    @property
    def columns(self) -> Mapping[str, int]:
        """Return how many values a position has in each tensor of the layer, by tensor name."""
        return {"key": self.key, **({} if self.value is None else {"value": self.value})}


@dataclass(frozen=True, slots=True)
class SharedLayer:
    """A layer without cached data, which reads the keys and values of another layer.

    Parameters
    ----------
    layer : int
        Number of that other layer.
    """

    layer: int


@old_names(stored="columns")
class StateShape:
    """The states of a recurrent layer, f32, one for every sequence.

    Parameters
    ----------
    **shapes : tuple of int
        Shape of each state, by a name that the model chooses.
    """

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        self.shapes: Mapping[str, tuple[int, ...]] = shapes

    def __repr__(self) -> str:
        return f"StateShape({', '.join(f'{n}={s}' for n, s in self.shapes.items())})"


@dataclass(frozen=True, slots=True)
class EncodedShape:
    """Keys and values of every position of an encoder's text, which the layer attends to.

    Parameters
    ----------
    key, value : int
        Numbers that one position takes, over all heads.
    picture : int
        Most positions of a picture, if the layer attends to pictures in a prompt instead; 0 for a
        text that is read before the answer.
    """

    key: int
    value: int
    picture: int = 0

    @property
    def columns(self) -> Mapping[str, int]:
        """Return how many values a position has in each tensor of the layer, by tensor name."""
        return {"key": self.key, "value": self.value}


CacheEntry = LayerShape | StateShape | SharedLayer | EncodedShape
LayerCache = CacheEntry | tuple[CacheEntry, ...] | None
"""The entries of one layer: one, several, or none."""


def forbid_shift(kept: LayerCache) -> LayerCache:
    """Return the entry without `turn`, for keys with learned or other fixed positions."""
    if isinstance(kept, tuple):
        return tuple(_without_turn(part) for part in kept)
    return None if kept is None else _without_turn(kept)


def _without_turn(kept: CacheEntry) -> CacheEntry:
    return replace(kept, turn=None) if isinstance(kept, LayerShape) else kept


def iterate_entries(layers: Sequence[LayerCache]) -> Iterator[tuple[int, CacheEntry]]:
    """Yield every entry of the layers, with the number of its layer."""
    for number, kept in enumerate(layers):
        parts = kept if isinstance(kept, tuple) else () if kept is None else (kept,)
        yield from ((number, part) for part in parts)


def paged_layers(layers: Sequence[LayerCache]) -> dict[int, LayerShape]:
    """Return the layers that store keys and values."""
    return {i: kept for i, kept in iterate_entries(layers) if isinstance(kept, LayerShape)}


def encoded_layers(layers: Sequence[LayerCache]) -> dict[int, EncodedShape]:
    """Return the layers that attend to an encoder's text."""
    return {i: kept for i, kept in iterate_entries(layers) if isinstance(kept, EncodedShape)}


def require_type(dtype: DType, layers: Mapping[int, LayerShape | EncodedShape]) -> None:
    """Raise if keys and values cannot have this type.

    Raises
    ------
    DTypeError
        The type is not one of `CACHE_TYPES`.
    ShapeError
        A position of a layer does not consist of whole blocks of the type.
    """
    if dtype not in CACHE_TYPES:
        wanted = ", ".join(map(str, CACHE_TYPES))
        raise DTypeError(f"cache: {dtype}, needs one of {wanted}")
    if not dtype.quantised:
        return
    for number, shape in layers.items():
        for what, cols in shape.columns.items():
            if cols % dtype.block:
                raise ShapeError(
                    f"cache: {what}s of layer {number} have {cols} values a position, {dtype} "
                    f"needs heads of a multiple of {dtype.block}; choose f16"
                )


def nbytes_per_position(layers: Sequence[LayerCache], dtype: DType) -> int:
    """Return the bytes that one position takes over all layers."""
    shapes = [*paged_layers(layers).values(), *encoded_layers(layers).values()]
    return sum(dtype.nbytes(sum(shape.columns.values())) for shape in shapes)
