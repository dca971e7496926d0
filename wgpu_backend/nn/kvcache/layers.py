"""What a layer keeps of the past: a model's word for its cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from wgpu_backend.dtypes import F16, F32, Q4_0, Q8_0, DType
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.tensor import Tensor

CACHE_TYPES = (F16, F32, Q8_0, Q4_0)

Turn = Callable[[Tensor, int], Tensor]
"""Keys of a layer, (positions, key) f32, as they are so many positions further on."""


def keep_keys(keys: Tensor, by: int) -> Tensor:
    """Keys that are the same at every position: a `Turn`."""
    return keys


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Keys and values of every position.

    Parameters
    ----------
    key : int
        Values that the keys of one position take, over all heads.
    value : int or None
        Likewise; None where values are the first columns of keys, which are then stored once.
    window : int
        Positions that a token of the layer sees at most, itself included; 0 for all.
    chunk : int
        A token sees no position before the last multiple of this; 0 for all.
    turn : callable or None
        How keys move to other positions, `keep_keys` where they know none; None where they cannot,
        as those of learned positions.
    """

    key: int
    value: int | None
    window: int = 0
    chunk: int = 0
    turn: Turn | None = field(default=None, compare=False)

    @property
    def columns(self) -> Mapping[str, int]:
        """Values of a position by what they are: of a layer's tensors."""
        return {"key": self.key, **({} if self.value is None else {"value": self.value})}


@dataclass(frozen=True, slots=True)
class SharedLayer:
    """Nothing of its own: the layer reads keys and values of another one.

    Parameters
    ----------
    layer : int
        That other one.
    """

    layer: int


class StateShape:
    """States of a recurrent layer, f32, of which every sequence has one.

    Parameters
    ----------
    **shapes : tuple of int
        Shape of each state, by a name of the model's choice.
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
        Values that those of one position take, over all heads.
    """

    key: int
    value: int

    @property
    def columns(self) -> Mapping[str, int]:
        """Values of a position by what they are: of a layer's tensors."""
        return {"key": self.key, "value": self.value}


CacheEntry = LayerShape | StateShape | SharedLayer | EncodedShape
LayerCache = CacheEntry | tuple[CacheEntry, ...] | None
"""What one layer keeps: one thing, several, or nothing."""


def forbid_shift(kept: LayerCache) -> LayerCache:
    """The same, of keys that know their positions otherwise than by a rotation."""
    if isinstance(kept, tuple):
        return tuple(_without_turn(part) for part in kept)
    return None if kept is None else _without_turn(kept)


def _without_turn(kept: CacheEntry) -> CacheEntry:
    return replace(kept, turn=None) if isinstance(kept, LayerShape) else kept


def iterate_entries(layers: Sequence[LayerCache]) -> Iterator[tuple[int, CacheEntry]]:
    """Everything that layers keep, with the number of the layer."""
    for number, kept in enumerate(layers):
        parts = kept if isinstance(kept, tuple) else () if kept is None else (kept,)
        yield from ((number, part) for part in parts)


def paged_layers(layers: Sequence[LayerCache]) -> dict[int, LayerShape]:
    """Layers that store keys and values."""
    return {i: kept for i, kept in iterate_entries(layers) if isinstance(kept, LayerShape)}


def encoded_layers(layers: Sequence[LayerCache]) -> dict[int, EncodedShape]:
    """Layers that attend to an encoder's text."""
    return {i: kept for i, kept in iterate_entries(layers) if isinstance(kept, EncodedShape)}


def require_type(dtype: DType, layers: Mapping[int, LayerShape | EncodedShape]) -> None:
    """Refuse types that keys and values cannot have.

    Raises
    ------
    DTypeError
        It is none of a cache.
    ShapeError
        A position of a layer is not made of whole blocks of it.
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
    """Bytes of a position that every layer still stores."""
    shapes = [*paged_layers(layers).values(), *encoded_layers(layers).values()]
    return sum(dtype.nbytes(sum(shape.columns.values())) for shape in shapes)
