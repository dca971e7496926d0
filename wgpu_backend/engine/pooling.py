"""One state of a text, out of those of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.config import Config
from wgpu_backend.errors import ModelError, OptionError

BY_NUMBER = ("none", "mean", "cls", "last", "rank")  # of ``pooling_type``
_POOLINGS: Mapping[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    "mean": lambda states: states.mean(axis=0),
    "cls": lambda states: states[0],
    "last": lambda states: states[-1],
}


def pooling_of(config: Config, asked: str | None) -> str:
    """What was asked for, or what a file says; the mean where it says nothing.

    Raises
    ------
    OptionError
        There is nothing of the name that was asked for.
    ModelError
        The file says what makes no vector of a text, or a number that is unknown.
    """
    known = ", ".join(_POOLINGS)
    if asked is not None:
        if asked not in _POOLINGS:
            raise OptionError(f"pooling: {asked!r} is unknown, needs one of {known}")
        return asked
    number = config.uint("pooling_type", BY_NUMBER.index("mean"))
    if number >= len(BY_NUMBER):
        raise ModelError(
            f"{config.source}: pooling_type is {number}, known are 0 to {len(BY_NUMBER) - 1}"
        )
    if BY_NUMBER[number] not in _POOLINGS:
        raise ModelError(
            f"{config.source}: pooling_type is {number} ({BY_NUMBER[number]}), which makes no "
            f"vector of a text; say pooling= one of {known}, or take states() or rerank()"
        )
    return BY_NUMBER[number]


def pooled(states: NDArray[np.float32], pooling: str) -> NDArray[np.float32]:
    """State (cols,) of (tokens, cols) states."""
    return _POOLINGS[pooling](states)


def unit(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Vector of length 1 that points the same way."""
    return vector / max(float(np.linalg.norm(vector)), 1e-12)
