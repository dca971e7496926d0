"""NumPy twin of `wgpu_backend.ops.fft.passes`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def fft_pass(
    x: Array,
    table: Array,
    *,
    radix: int,
    done: int,
    swap_in: bool = False,
    swap_out: bool = False,
    scale: float = 1.0,
) -> Array:
    """One pass, in f64."""
    rows, length, _ = x.shape
    real, imag = (x[..., i].astype(np.float64) for i in ((1, 0) if swap_in else (0, 1)))
    values = (real + 1j * imag).reshape(rows, radix, length // radix)
    places = np.arange(radix)
    steps = np.tile(np.arange(done), length // (radix * done))
    turns = places[:, None] * steps / (radix * done)
    butterfly = np.exp(-2j * np.pi * places[:, None] * places / radix)
    found = butterfly @ (values * np.exp(-2j * np.pi * turns)) * scale
    ordered = found.reshape(rows, radix, -1, done).transpose(0, 2, 1, 3).reshape(rows, length)
    parts = [ordered.real, ordered.imag]
    return np.stack(parts[::-1] if swap_out else parts, axis=-1)
