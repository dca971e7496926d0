"""Blocks of every format for tests: random bits under sane scales, and some that libggml made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.shares import rare, rare_on
from wgpu_backend.dtypes import ALL, DType

FORMATS = tuple(dtype for dtype in ALL if dtype.quantised)
# Of each way to lay values out one, for kernels that read all of them by the same snippet.
SAMPLE = ("q4_0", "q5_1", "q8_0", "q4_k", "q6_k", "iq2_xs", "iq3_s", "tq2_0", "mxfp4")
DATA = Path(__file__).parent / "data" / "blocks.npz"
# Where a block has its f16 scales, and the spread of its values when they are 1; a minimum, which
# stands behind its scale, is drawn from as many times it as centres the values.
_HALVES: dict[str, tuple[tuple[int, ...], float, float]] = {
    "q1_0": ((0,), 1.0, 1.0),
    "q2_0": ((0,), 1.2, 1.0),
    "q4_0": ((0,), 4.7, 1.0),
    "q4_1": ((0, 2), 4.7, -7.5),
    "q5_0": ((0,), 9.3, 1.0),
    "q5_1": ((0, 2), 9.3, -15.5),
    "q8_0": ((0,), 74.0, 1.0),
    "q8_1": ((0,), 74.0, 1.0),
    "q2_k": ((80, 82), 14.0, 1.5),
    "q3_k": ((108,), 43.0, 1.0),
    "q4_k": ((0, 2), 270.0, 7.5),
    "q5_k": ((0, 2), 560.0, 15.5),
    "q6_k": ((208,), 1370.0, 1.0),
    "iq1_s": ((0,), 7.5, 1.0),
    "iq2_xxs": ((0,), 60.0, 1.0),
    "iq2_xs": ((0,), 60.0, 1.0),
    "iq2_s": ((0,), 60.0, 1.0),
    "iq3_xxs": ((0,), 150.0, 1.0),
    "iq3_s": ((0,), 160.0, 1.0),
    "iq4_nl": ((0,), 70.0, 1.0),
    "iq4_xs": ((0,), 1280.0, 1.0),
    "tq1_0": ((52,), 0.8, 1.0),
    "tq2_0": ((64,), 0.8, 1.0),
}


def sampled(dtypes: Iterable[DType], *kinds: str) -> list[Any]:
    """Parameters of these types, blocks beyond the sample as variants (on these kinds alone)."""
    mark = rare_on(*kinds) if kinds else rare
    return [
        dtype if not dtype.quantised or dtype.name in SAMPLE else pytest.param(dtype, marks=mark)
        for dtype in dtypes
    ]


def random_blocks(rng: np.random.Generator, dtype: DType, count: int, std: float) -> np.ndarray:
    """Blocks, (count, block_nbytes), whose values have a standard deviation of about `std`.

    Scales stay normal numbers of f16, since a device may take smaller ones for zero.
    """
    blocks = rng.integers(0, 256, (count, dtype.block_nbytes), np.uint8)
    scale = (std * rng.uniform(0.7, 1.3, (count, 1))).astype("f4")
    if dtype.name in _HALVES:
        places, spread, centre = _HALVES[dtype.name]
        for place, factor in zip(places, (1.0, centre), strict=False):
            blocks[:, place : place + 2] = _f16_bytes(scale / spread * factor)
    else:
        _SPECIAL[dtype.name](blocks, scale)
    return blocks


def _f16_bytes(values: np.ndarray) -> np.ndarray:
    return values.astype("<f2").view("u1")


def _q8_k(blocks: np.ndarray, scale: np.ndarray) -> None:
    blocks[:, :4] = (scale / 74).astype("<f4").view("u1")


def _iq1_m(blocks: np.ndarray, scale: np.ndarray) -> None:
    words = blocks[:, 48:].view("<u2")
    bits = (scale / 7.5).astype("<f2").view("<u2")
    words[:] = (words & 0xFFF) | (((bits >> np.array([0, 4, 8, 12], "<u2")) & 15) << 12)


def _mxfp4(blocks: np.ndarray, scale: np.ndarray) -> None:
    blocks[:, :1] = np.round(np.log2(scale / 6) + 128).astype("u1")


def _nvfp4(blocks: np.ndarray, scale: np.ndarray) -> None:
    # Bytes of FP8 grow with the logarithm, eight to a doubling; 56 is 1.
    steps = np.arange(4) - 2
    blocks[:, :4] = np.clip(np.log2(scale / 3) * 8 + 56 + steps, 1, 126).astype("u1")


_SPECIAL: dict[str, Callable[[np.ndarray, np.ndarray], None]] = {
    "q8_k": _q8_k,
    "iq1_m": _iq1_m,
    "mxfp4": _mxfp4,
    "nvfp4": _nvfp4,
}


@cache
def recorded() -> dict[str, np.ndarray]:
    """Rows of 256 normal numbers as libggml quantised them: by format, uint8."""
    with np.load(DATA) as file:
        return dict(file)
