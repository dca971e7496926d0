"""Pooling: one state of a text from the states of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.errors import ModelError, OptionError
from wgpu_backend.files.gguf.config import Config

# The order of ``pooling_type`` in llama.h.
BY_NUMBER = ("none", "mean", "cls", "last", "rank")
_POOLINGS: Mapping[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    "mean": lambda states: states.mean(axis=0),
    "cls": lambda states: states[0],
    "last": lambda states: states[-1],
    "max": lambda states: states.max(axis=0),
    "mean_sqrt_len": lambda states: states.sum(axis=0) / np.float32(len(states) ** 0.5),
    # Muennighoff 2022, "SGPT", §4.2.1: weights grow with the position.
    "weightedmean": lambda states: np.average(
        states, axis=0, weights=np.arange(1, len(states) + 1, dtype=np.float32)
    ),
}


def require_known_pooling(asked: str) -> str:
    """Return a pooling method, or several joined by ``+``, if all are known.

    Raises
    ------
    OptionError
    """
    if not _are_known(asked):
        raise OptionError(
            f"pooling: {asked[:40]!r} is unknown, needs one of {', '.join(_POOLINGS)}"
        )
    return asked


def choose_pooling(config: Config, asked: str | None) -> str:
    """Return the requested pooling, else the file's, else the mean.

    Several methods are joined by ``+``; their results are concatenated.

    Raises
    ------
    OptionError
        The requested pooling is unknown.
    ModelError
        The file's pooling gives no vector of a text, is unknown, or names several methods.
    """
    known = ", ".join(_POOLINGS)
    if asked is not None:
        return require_known_pooling(asked)
    several = config.string("pooling", "")
    if several:
        if not _are_known(several):
            raise ModelError(f"{config.source}: pooling is {several!r}, needs one of {known}")
        if "+" in several:
            raise ModelError(
                f"{config.source}: it names {several.count('+') + 1} poolings; pass "
                f"pooling={several!r} to concatenate their vectors, as "
                f"sentence-transformers does, or one of {known}"
            )
        return several
    number = config.uint("pooling_type", BY_NUMBER.index("mean"))
    if number >= len(BY_NUMBER):
        raise ModelError(
            f"{config.source}: pooling_type is {number}, needs 0 to {len(BY_NUMBER) - 1}"
        )
    if BY_NUMBER[number] not in _POOLINGS:
        raise ModelError(
            f"{config.source}: pooling_type is {number} ({BY_NUMBER[number]}), which gives no "
            f"embedding of a text; pass pooling= one of {known}, or take states() or rerank()"
        )
    return BY_NUMBER[number]


def pool_states(states: NDArray[np.float32], pooling: str) -> NDArray[np.float32]:
    """Pool states (tokens, cols) to (methods * cols,)."""
    made = [_POOLINGS[each](states) for each in pooling.split("+")]
    return (made[0] if len(made) == 1 else np.concatenate(made)).astype(np.float32, copy=False)


def _are_known(pooling: str) -> bool:
    return all(each in _POOLINGS for each in pooling.split("+"))


def unit(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale a vector to length 1."""
    # The bound of `torch.nn.functional.normalize`: a vector of zeros stays one, without NaN.
    return vector / max(float(np.linalg.norm(vector)), 1e-12)
