# ruff: noqa: ANN401 - arrays of two libraries, alike in what is called
"""Random arrays of both libraries, in one of several layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx  # pyright: ignore[reportMissingImports]
import numpy as np

import wgpu_backend.array as wx

FLOATS = ("float32", "float16", "bfloat16")
INTEGERS = ("int32", "uint32", "int16", "uint16", "int8", "uint8")
SMALL = ("float32", "int32", "int16", "uint8")
ALL = (*FLOATS, *INTEGERS, "bool")
NUMBERS = (*FLOATS, *INTEGERS)


@dataclass
class Both:
    """The same values as an array of each library."""

    ours: Any
    theirs: Any


class Draw:
    """A generator of random arrays of both libraries."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def shape(self, least: int = 0, most: int = 4) -> tuple[int, ...]:
        """Draw the extents of an array."""
        rank = int(self.rng.integers(least, most + 1))
        return tuple(int(n) for n in self.rng.integers(1, 10, rank))

    def values(self, shape: tuple[int, ...], dtype: str, low: float, high: float) -> Any:
        """Draw values of a type, exact in NumPy's float32 or integers."""
        if dtype == "bool":
            return self.rng.random(shape) < 0.5
        if dtype in FLOATS:
            return self.rng.uniform(low, high, shape).astype(np.float32)
        info = np.iinfo(dtype)
        least, most = max(int(low), info.min), min(int(high), info.max)
        return self.rng.integers(least, max(most, least + 1), shape).astype(dtype)

    def array(
        self,
        shape: tuple[int, ...],
        dtype: str = "float32",
        low: float = -3.0,
        high: float = 3.0,
    ) -> Both:
        """Draw an array in one of several layouts."""
        way = self.rng.integers(0, 5) if shape else 0
        host = self.values(shape, dtype, low, high)
        if way == 1:
            order = self.rng.permutation(len(shape))
            back = [int(k) for k in np.argsort(order)]
            return self.both(host.transpose(order), dtype, lambda x: x.transpose(*back))
        if way == 2:
            doubled = np.repeat(host, 2, -1)
            return self.both(doubled, dtype, lambda x: x[..., ::2])
        if way == 3:
            return self.both(host[::-1], dtype, lambda x: x[::-1])
        if way == 4:
            one = host[:1]
            return self.both(one, dtype, lambda x: _module(x).broadcast_to(x, shape))
        return self.both(host, dtype, lambda x: x)

    def both(self, host: Any, dtype: str, view: Callable[[Any], Any]) -> Both:
        """View the same values in both libraries."""
        host = host.copy()
        ours = wx.array(host).astype(getattr(wx, dtype))
        theirs = mx.array(host).astype(mx.bool_ if dtype == "bool" else getattr(mx, dtype))
        return Both(view(ours), view(theirs))

    def one_of(self, *choices: Any) -> Any:
        """Draw one of several items."""
        return choices[int(self.rng.integers(0, len(choices)))]

    def axis(self, shape: tuple[int, ...]) -> int:
        """Draw an axis of a shape, from either end."""
        return int(self.rng.integers(-len(shape), len(shape)))


def _module(x: Any) -> Any:
    return mx if isinstance(x, mx.array) else wx


Case = tuple[tuple[Any, ...], dict[str, Any]]
Drawn = Callable[[Draw], Case]
