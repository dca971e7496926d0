"""Sinusoidal embeddings of diffusion time steps: timestep_embedding."""

from __future__ import annotations

import numpy as np

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import OptionError, ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec, extents
from wgpu_backend.ops.check import FLOATS, is_finite, require, require_dtype, require_rank
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array


@op(constants=("frequencies",), trusted=True)
def sinusoids(
    t: Node, frequencies: Node, *, dim: int, cosine_first: bool = False, scale: float = 1.0
) -> Launch:
    """Compute sines and cosines of times by frequencies; see `timestep_embedding`.

    Parameters
    ----------
    t : (n,)
        f32, f16 or bf16, of any stride.
    frequencies : (dim // 2,)
        f32.

    Returns
    -------
    (n, dim), f32
    """
    count, half = t.spec.shape[0], dim // 2
    threads = count * max(half, dim % 2)
    return Launch(
        Spec.dense((count, dim), F32),
        {"t": t, "frequencies": frequencies},
        threads=threads,
        params={
            "count": threads,
            "half": half,
            "dim": dim,
            "t_step": t.spec.strides[0],
            "scale": scale,
        },
        choices={"COSINE_FIRST": cosine_first},
        work=count * dim * 16,
    )


@sinusoids.reference
def sinusoids_reference(
    t: Array, frequencies: Array, *, dim: int, cosine_first: bool = False, scale: float = 1.0
) -> Array:
    """Compute sines and cosines in f64 of angles in f32."""
    angles = t[:, None].astype(np.float32) * frequencies[: dim // 2] * np.float32(scale)
    parts = [np.sin(angles.astype(np.float64)), np.cos(angles.astype(np.float64))]
    parts = parts[::-1] if cosine_first else parts
    return np.concatenate([*parts, np.zeros((len(t), dim % 2))], axis=1)


def timestep_embedding(
    t: Node,
    dim: int,
    flip_sin_to_cos: bool = False,
    downscale_freq_shift: float = 1.0,
    scale: float = 1.0,
    max_period: float = 10000.0,
) -> Node:
    """Embed time steps as sines, then cosines, at frequencies from 1 to about 1 / `max_period`.

    Source: Ho, Jain & Abbeel 2020, "Denoising Diffusion Probabilistic Models", appendix B, after
    Vaswani et al. 2017, "Attention Is All You Need", section 3.5. Frequencies are rounded to f32 in
    the same places as in other programs.

    Parameters
    ----------
    t : (n,), f32, f16 or bf16
        Time steps, whole or in between.
    dim : int
        Values of an embedding; the last is 0 where it is odd.
    flip_sin_to_cos : bool
        Cosines come first.
    downscale_freq_shift : float
        How many frequencies fewer than half of `dim` lie between 1 and one a period.
    scale : float
        Factor of the angles, which are in radians.
    max_period : float
        Steps in which the lowest frequency turns by about one radian.

    Returns
    -------
    (n, dim), f32

    Raises
    ------
    ShapeError
        `t` is not one row, or `dim` is less than 1.
    OptionError
        `max_period` is not positive, or half of `dim` is the shift.
    """
    require_rank("timestep_embedding", "t", t, 1, 1)
    require_dtype("timestep_embedding", "t", t, FLOATS)
    (dim,) = extents("timestep_embedding: dim", (dim,))
    require(dim > 0, ShapeError, f"timestep_embedding: dim is {dim}, needs 1 or more")
    numbers = (downscale_freq_shift, scale, max_period)
    require(
        all(is_finite(n) for n in numbers) and max_period > 0 and dim // 2 != downscale_freq_shift,
        OptionError,
        f"timestep_embedding: shift {downscale_freq_shift} of {dim // 2} frequencies, scale {scale}"
        f", period {max_period}; needs another shift than {dim // 2}, and a period above 0",
    )
    steps = np.arange(dim // 2, dtype=np.float32) * np.float32(-np.log(max_period))
    exponents = steps / np.float32(dim // 2 - downscale_freq_shift)
    # Exponents in f32, as diffusers computes them: models were trained with these frequencies.
    frequencies = np.exp(exponents.astype(np.float64)).astype(np.float32)
    # Of no use for one dimension, but an operand must have a size.
    frequencies = frequencies if dim > 1 else np.ones(1, np.float32)
    return sinusoids(t, frequencies, dim=dim, cosine_first=flip_sin_to_cos, scale=scale)  # pyright: ignore[reportArgumentType]
