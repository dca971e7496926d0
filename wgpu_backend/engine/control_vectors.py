"""Control vectors in GGUF files: directions that are added to the hidden states after layers.

Zou et al. 2023, "Representation Engineering", §3.2. The keys and names are those of llama.cpp's
`cvector-generator`: ``direction.N`` is added after layer N, counted from 0; layer 0 has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ModelError, OptionError
from wgpu_backend.files.gguf.reader import GGUFFile, open_gguf

Directions = dict[int, NDArray[np.float32]]


def directions_of(
    given: Sequence[tuple[Path, float]], layers: tuple[int, int] | None, base: GGUFFile
) -> Directions:
    """Sum control vectors, each times its scale, by layer.

    Parameters
    ----------
    given : sequence of (Path, float)
        Files and scales.
    layers : pair of int or None
        First and last layer to steer; None for all in the files.
    base : GGUFFile
        The model's file.

    Raises
    ------
    GGUFError, ModelError
        A file is damaged, or is not a control vector for this model.
    OptionError
        The model does not have these layers.
    """
    count = base.config.uint("block_count", at_least=1)
    first, last = _range(layers, count)
    total: Directions = {}
    for path, scale in given:
        with open_gguf(path) as file:
            for layer, values in _read(file, base, count).items():
                if first <= layer <= last and scale:
                    total[layer] = total.get(layer, np.float32(0)) + np.float32(scale) * values
    return total


def _range(layers: tuple[int, int] | None, count: int) -> tuple[int, int]:
    first, last = layers or (1, count)
    if not 1 <= first <= last <= count:
        raise OptionError(
            f"control vectors: layers {first} to {last}, the model has {count}; needs a first one "
            f"of at least 1, and a last one from there to {count}"
        )
    return first, last


def _read(file: GGUFFile, base: GGUFFile, count: int) -> Directions:
    """Read and check the directions of one file."""
    if not file.tensors:
        raise ModelError(f"{file.path}: it has 0 tensors, a control vector has direction.1, …")
    width = base.config.uint("embedding_length", at_least=1)
    found: Directions = {}
    for name, info in file.tensors.items():
        kind, _, number = name.partition(".")
        if kind != "direction" or not (number.isascii() and number.isdecimal()):
            raise ModelError(
                f"{file.path}: tensor {name}: a control vector has direction.1, … alone"
            )
        layer = int(number)
        if not 0 < layer < count:
            raise ModelError(
                f"{file.path}: tensor {name}: the model {base.path} has {count} layers, needs a "
                f"number from 1 to {count - 1}"
            )
        if info.shape != (width,) or info.dtype != F32:
            raise ModelError(
                f"{file.path}: tensor {name} is {info.dtype} {info.shape}, the model {base.path} "
                f"needs f32 {(width,)}"
            )
        values = np.frombuffer(file.data(name), np.float32)
        if not np.isfinite(values).all():
            raise ModelError(f"{file.path}: tensor {name} has values that are NaN or infinite")
        found[layer] = found.get(layer, np.float32(0)) + values
    return found
