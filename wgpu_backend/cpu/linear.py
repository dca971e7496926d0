"""NumPy twins of `wgpu_backend.ops.linear.linear` and `matmul_strided`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu import activation as activations
from wgpu_backend.cpu import f16_groups, q16
from wgpu_backend.cpu.normed import norm_weighted, normed
from wgpu_backend.cpu.q8 import norm_factor, out_of_planes, q8_activations, q8_weighted, values_of
from wgpu_backend.cpu.twin import Array, twin
from wgpu_backend.ops.linear.attributes import SUMS, VALUES, Epilogue, Precision, Prologue


@twin
def linear(
    weight: Array,
    x: Array,
    addend: Array | None = None,
    scale: Array | None = None,
    total: Array | None = None,
    gain: Array | None = None,
    *,
    prologue: Prologue = VALUES,
    epilogue: Epilogue = SUMS,
    precision: Precision = "default",
) -> Array:
    """Product of what `prologue` takes `x` for, and what `epilogue` makes of it."""
    rows = _rows(x, weight.shape[-1], prologue) if gain is None else _norm(x, gain, prologue)
    y = np.matmul(rows.sum(axis=-2) if prologue.parts > 1 else rows, weight.T)
    if epilogue.activation is not None:
        gate, up = np.split(y, 2, axis=-1)
        y = getattr(activations, epilogue.activation)(gate) * up
    y = y if addend is None else y + addend
    return _left(y, scale, total, epilogue)


def _rows(x: Array, k: int, prologue: Prologue) -> Array:
    """Values of rows, with the factor of a norm where they lack it."""
    if prologue.form == "values":
        return normed(x, k, prologue.eps)
    if prologue.in_f16:
        values = f16_groups.values_of(x, prologue.form == "f16_nibbles")
        return values * f16_groups.norm_factor(x, prologue.eps)
    if prologue.form == "q16":
        return q16.values_of(x) * q16.norm_factor(x, prologue.eps)
    if prologue.form == "q8":
        return values_of(x) * norm_factor(x, prologue.eps)
    parts = out_of_planes(x)
    return values_of(parts if x.shape[-1] == 12 else parts.reshape(*x.shape[1:-2], 2, -1, 12))


def _norm(x: Array, gain: Array, prologue: Prologue) -> Array:
    """Rows behind a norm."""
    mean = np.mean(x * x, axis=-1, keepdims=True)
    return x / np.sqrt(mean + np.float32(prologue.eps or 0)) * gain


def _left(y: Array, scale: Array | None, total: Array | None, epilogue: Epilogue) -> Array:
    """What a product leaves of its sums."""
    if not epilogue.norm:
        return _rounded(y, None, epilogue) if epilogue.rounded else y
    assert total is not None
    assert scale is not None
    total[...] = y
    return _rounded(total, scale, epilogue) if epilogue.rounded else norm_weighted(total, scale)


def _rounded(y: Array, scale: Array | None, epilogue: Epilogue) -> Array:
    """Sums in groups, which may lie in planes."""
    if epilogue.form == "q8":
        options = {"planar": epilogue.planar}
        return q8_activations(y, **options) if scale is None else q8_weighted(y, scale, **options)
    if epilogue.form == "q16":
        return q16.q16_activations(y) if scale is None else q16.q16_weighted(y, scale)
    options = {"planar": epilogue.planar, "nibbles": epilogue.form == "f16_nibbles"}
    if scale is None:
        return f16_groups.f16_activations(y, **options)
    return f16_groups.f16_weighted(y, scale, **options)


@twin
def matmul_strided(a: Array, x: Array) -> Array:
    """Return ``x @ a.T``, batches of `a` repeated to those of `x`."""
    batch = a.shape[:-2]
    for axis, wanted in zip(range(-3, -3 - len(batch), -1), reversed(x.shape[:-2]), strict=False):
        a = np.repeat(a, wanted // a.shape[axis], axis=axis)
    return np.matmul(x, np.swapaxes(a, -1, -2)).reshape(*x.shape[:-1], a.shape[-2])
