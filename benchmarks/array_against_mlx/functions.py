# ruff: noqa: ANN401 - arrays of two libraries, alike in what is called
"""Functions of both libraries, called in the same way under one name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx  # pyright: ignore[reportMissingImports]
import mlx.nn as mlx_nn  # pyright: ignore[reportMissingImports]
import numpy as np

import wgpu_backend.array as wx


def host_of(x: Any) -> Any:
    """Convert an array of either library to NumPy."""
    if isinstance(x, mx.array):
        return np.asarray(x.astype(mx.float32) if x.dtype == mx.bfloat16 else x)
    return np.asarray(x)


def planes(module: Any, w: Any, options: dict[str, Any]) -> tuple[Any, ...]:
    """Make the same quantised planes for both libraries, by MLX."""
    made = mx.quantize(mx.array(np.asarray(w)), **options)
    return made if module is mx else tuple(wx.array(np.asarray(p)) for p in made)


def _dequantised(module: Any) -> Callable[..., Any]:
    def function(w: Any, **options: Any) -> Any:
        return module.dequantize(*planes(module, host_of(w), options), **options)

    return function


def _multiplied(module: Any) -> Callable[..., Any]:
    def function(w: Any, **options: Any) -> Any:
        host = host_of(w)
        x = module.array((host[:, ::-1] / 3).astype(np.float32))
        given = planes(module, host, options)
        given = given if len(given) == 3 else (*given, None)
        return module.quantized_matmul(x, *given, transpose=True, **options)

    return function


def _gathered(module: Any) -> Callable[..., Any]:
    def function(w: Any, **options: Any) -> Any:
        host = np.stack([host_of(w)] * 3) * np.arange(1, 4, dtype=np.float32).reshape(3, 1, 1)
        x = module.array((host[:, :, ::-1] / 3).astype(np.float32))
        given = planes(module, host, options)
        given = given if len(given) == 3 else (*given, None)
        lhs, rhs = (module.array(np.asarray(v, np.uint32)) for v in ([0, 2], [1, 1]))
        return module.gather_qmm(
            x, *given, lhs_indices=lhs, rhs_indices=rhs, transpose=True, **options
        )

    return function


def _assign(x: Any, places: Any, values: Any) -> Any:
    made = x + 0
    made[places] = values
    return made


SPECIAL: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "dequantize": _dequantised,
    "quantized_matmul": _multiplied,
    "gather_qmm": _gathered,
    "getitem": lambda module: lambda x, places: x[places],
    "setitem": lambda module: _assign,
    "at.add": lambda module: lambda x, ids, values: x.at[ids].add(values),
}


def function_of(name: str, module: Any) -> Callable[..., Any]:
    """Return a function of ours or of MLX by its name here."""
    if name in SPECIAL:
        return SPECIAL[name](module)
    if name == "view":
        return lambda x, kind: module.view(x, getattr(module, kind))
    if name == "random.categorical":
        return lambda logits, key: module.random.categorical(
            module.array(np.linspace(-2, 2, 40, dtype=np.float32).reshape(4, 10)), key=key
        )
    if name == "random.uniform":
        return lambda **options: module.random.uniform(
            options.pop("low", 0), options.pop("high", 1), **options
        )
    path = name.split(".")
    if module is mx and not hasattr(mx, path[0]):
        return getattr(mlx_nn, name)
    found: Any = module
    for part in path:
        found = getattr(found, part)
    if name in ("argsort", "argpartition"):  # the values there: places of equal ones may differ
        return lambda x, axis, **options: module.take_along_axis(
            x, found(x, axis=axis, **options), axis=axis
        )
    if name == "tile":
        return lambda x, reps: found(x, reps)
    if name == "repeat":
        return lambda x, repeats, axis: found(x, repeats, axis=axis)
    return found
