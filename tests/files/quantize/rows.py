"""The rows that libggml quantised for `tests/data/quantised.npz`, and what it made of them."""

from functools import cache
from pathlib import Path

import numpy as np

from wgpu_backend.files.quantize import WRITABLE

FILE = Path(__file__).parents[2] / "data" / "quantised.npz"
FORMATS = tuple(name for name in WRITABLE if name not in ("f32", "f16", "bf16"))
COLS = 256


def rows() -> np.ndarray:
    """Normal, heavy-tailed, constant, sparse, outlier, tiny, large, positive, whole: (9, 256)."""
    rng = np.random.default_rng(20)
    values = rng.standard_normal((9, COLS)) * 0.02
    values[1] = rng.standard_t(2, COLS) * 0.02
    values[2] = -0.3
    values[3] *= rng.random(COLS) < 0.04
    values[4, 77] = 30
    values[5] *= 1e-5
    values[6] *= 1e6
    values[7] = rng.uniform(0.1, 1, COLS)
    values[8] = rng.integers(-8, 9, COLS)
    return values.astype("f4")


def importances() -> np.ndarray:
    """One a column, some of them 0."""
    made = np.random.default_rng(21).standard_gamma(0.5, COLS).astype("f4")
    made[::7] = 0
    return made


@cache
def recorded() -> dict[str, np.ndarray]:
    """Bytes of each row by format; ``FORMAT_weighted`` with importances, where they matter."""
    with np.load(FILE) as file:
        return dict(file)
